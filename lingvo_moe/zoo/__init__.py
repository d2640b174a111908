"""The registered models: one module for each family, one class for each model."""
