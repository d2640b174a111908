"""Random changes of training examples; one policy per file."""
