"""How weights are trained: schedules, optimizers, the step, the loop and checkpoints."""
