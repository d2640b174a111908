"""Chips, the links between them, and the times of collectives: published or measured."""
