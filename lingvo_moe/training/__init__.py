"""Training: schedules, optimizers, the step, the loop and checkpoints."""
