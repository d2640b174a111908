"""Rules that drop bad lines of a corpus, one a file."""
