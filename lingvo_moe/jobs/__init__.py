"""Whole runs: training, evaluation, baselines."""
