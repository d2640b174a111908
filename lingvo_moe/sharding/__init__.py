"""Where the pieces of a tensor live: meshes, logical-axis rules, XLA sharding annotations."""
