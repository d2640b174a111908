"""The zoo: a module a family, a registered class a model."""

# Policies that no registered model uses are known to --set all the same.
from lingvo_moe.train import adamw, lion

__all__ = ["adamw", "lion"]
