"""The zoo: a module a family, a registered class a model."""

# Policies that no registered model uses are known to --set all the same.
from lingvo_moe.gatings import balanced, expert_choice, hashed, switch, top_k
from lingvo_moe.train import adamw, lion

__all__ = ["adamw", "balanced", "expert_choice", "hashed", "lion", "switch", "top_k"]
