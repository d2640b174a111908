"""Data: corpora, vocabularies, datasets, sampling and packing, the synthetic languages."""
