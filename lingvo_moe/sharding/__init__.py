"""Sharding of tensors: meshes, logical-axis rules, XLA sharding annotations."""
