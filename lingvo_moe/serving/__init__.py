"""Serving: export to what runs without this package."""
