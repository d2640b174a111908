"""Runtimes: where a step is compiled, where the state lives, how batches get there."""
