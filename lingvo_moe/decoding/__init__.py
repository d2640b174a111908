"""Decoding: flat beam search."""
