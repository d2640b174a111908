"""The cost of a model on D devices: by an analytic model, and by the TPU compiler."""
