"""What all tests run with."""

import os

# Programs that run once are not worth optimizing. XLA reads this when TensorFlow is first used.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
