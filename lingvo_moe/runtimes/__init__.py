"""Runtimes: they compile the step, hold the state and feed batches."""
