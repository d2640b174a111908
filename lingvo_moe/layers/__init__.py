"""The layers of a Transformer with Mixture-of-Experts."""
