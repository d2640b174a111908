"""Further scores of the report; one policy a file."""
