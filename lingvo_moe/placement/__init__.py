"""FlexMoE: where experts live, and when they move (arXiv 2304.03946)."""
