"""Tasks: loss, translation, training and evaluation end to end, logdirs."""
