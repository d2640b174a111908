"""Command-line tools: flags, one call, print."""

import os

# TensorFlow greets on standard error at import; a tool's output is for its user.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
