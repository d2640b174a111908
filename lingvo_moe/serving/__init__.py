"""Exports of models for use without this package, and their clients."""
