"""Tasks: input to loss, input to output, and what is measured on the way."""
