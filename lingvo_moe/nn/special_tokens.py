"""Ids that every vocabulary reserves."""

PAD, BOS, EOS, UNK = 0, 1, 2, 3
