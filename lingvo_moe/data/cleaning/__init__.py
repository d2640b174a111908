"""Rules that drop bad lines of a corpus."""
