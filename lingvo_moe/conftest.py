"""What all tests run with: programs that run once are not worth optimizing."""

import ctypes
import gc
import os
import signal
import sys

import pytest

from lingvo_moe.testing.plugins import forgotten_plugins

# XLA and TensorFlow read these when they are first used. Tensors of tests are small: dividing the
# work among threads costs more than it saves.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # CTranslate2's threads wait actively for each other

# A shell starts a background command with SIGINT ignored, and its processes inherit this. The tests
# of Ctrl-C need the default.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # after nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish():
    """The collector of garbage does not search again what the imports made."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_graph_optimizer(request):
    """Turns Grappler off in this process, not in processes of tests and not with slow tests."""
    tf = sys.modules.get("tensorflow")
    if tf and request.config.option.markexpr == "not slow":
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture
def fresh_plugins():
    """Plug-ins of the test, and their models, are forgotten when it ends."""
    with forgotten_plugins():
        yield


@pytest.fixture(scope="module", autouse=True)
def _free_memory(request):
    """After a file of tests, frees its compiled functions; a process runs over a hundred files."""
    yield
    for value in vars(request.module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    gc.collect()
    gc.freeze()  # otherwise each collection also scans what earlier files have left
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
