"""Scores of translations per language pair, their significance, and the report on them."""
