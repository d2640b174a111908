"""What everything else is made of: params, registry, NestedMap, layers and weights."""
