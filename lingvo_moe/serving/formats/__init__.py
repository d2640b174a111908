"""Formats of exports; one policy per file."""
