"""Policies of expert placement on recorded or generated loads, by the cost model."""
