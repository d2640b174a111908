"""Dropless experts (MegaBlocks, 2211.15841): block-sparse products, ladders of capacities."""
