"""The zoo: a module a family, a registered class a model."""
