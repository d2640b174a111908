"""Placement of experts on devices, and its changes during training (FlexMoE, 2304.03946)."""
