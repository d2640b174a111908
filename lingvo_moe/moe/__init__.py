"""Mixture-of-Experts, GShard section 2: router, gatings, capacity, dispatch, the MoE layer."""
