"""FlexMoE's placement of experts on devices, and its changes (arXiv 2304.03946)."""
