"""What layers are made of: Layer, WeightSpec, NestedMap, Context, random numbers, gradients."""
