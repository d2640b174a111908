"""lingvo_moe: massively multilingual translation with Mixture-of-Experts Transformers."""

__version__ = "0.1.0"
