"""Experts that move and multiply with the load (FlexMoE, 2304.03946)."""
