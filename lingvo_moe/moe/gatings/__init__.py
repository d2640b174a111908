"""Gating policies: they choose the experts of tokens; one policy per file."""
