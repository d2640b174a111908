"""Other people's checkpoints, both ways."""
