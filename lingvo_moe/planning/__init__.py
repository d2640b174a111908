"""What a model costs on D devices: an analytic model, and what the TPU compiler says."""
