"""Chips, the links between them, and the seconds of collectives: as published or measured."""
