"""Further scores of the report; one policy per file."""
