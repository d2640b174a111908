"""Gating policies: which tokens go to which experts, one policy a file."""
