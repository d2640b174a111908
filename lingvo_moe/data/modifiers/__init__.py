"""Random changes of training examples; one policy a file."""
