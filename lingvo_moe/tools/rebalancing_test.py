import types

import numpy as np
import pytest

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.flexmoe.rates import Profile
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.tools import rebalancing

profile = pytest.importorskip("lingvo_moe.flexmoe.profile")  # which needs JAX
SLOTS = "model.moe.training=VExperts(devices=4, slots_per_device=3)"
TASK = TranslationTask(override(get_params("tiny.MoE"), [SLOTS]))


def cost(monkeypatch, **flags):
    flags = {"hardware": "h100", "runtime": "local", "process_count": None, "mesh": None} | flags
    monkeypatch.setattr(rebalancing, "FLAGS", types.SimpleNamespace(**flags))
    return rebalancing.make_scheduler(TASK).maker.cost


def test_the_table_of_hardware(monkeypatch):
    """tiny.MoE: vectors of 128, 512 hidden units, float32; an H100's 495e12 FLOP/s, half of them.

    A choice is 6 FLOPs for each of 2 · 128 · 512 weights. A slot is these in float32, and
    Adafactor's row and column of each of the two matrices.
    """
    found = cost(monkeypatch)
    assert found.num_devices == 4
    assert found.token_bytes == 4 * 128
    np.testing.assert_allclose(found.tokens_per_second, 495e12 / 2 / (6 * 2 * 128 * 512))
    assert found.state_bytes == 4 * 2 * (128 * 512 + 128 + 512)
    assert found.gradient_bytes == 4 * 2 * 128 * 512


def test_the_devices_of_a_mesh(monkeypatch):
    """Eight H100 are a host. Experts that are split in four are on every fourth of 16 devices."""
    whole, split = cost(monkeypatch), cost(monkeypatch, mesh="expert:4,model:4")
    assert split.tokens_per_second == 4 * whole.tokens_per_second
    assert (split.gradient_bytes, split.state_bytes) == (
        whole.gradient_bytes / 4,
        whole.state_bytes / 4,
    )
    assert split.bandwidth[0, 1] == whole.bandwidth[0, 1] > split.bandwidth[0, 2]
    assert split.bandwidth[1, 2] == split.bandwidth[0, 2]


def test_what_was_measured(monkeypatch):
    """A millisecond for 100 tokens and two for 200."""
    machines = []

    class Machine:
        token_bytes, gradient_bytes = 512, 1000.0

        def __init__(self, **shape):
            machines.append(shape)
            self.devices = (None,) * 4

    def measure(machine):
        return Profile(
            devices=4,
            compute=((100, 1e-3), (200, 2e-3)),
            exchange=((1e6, 1e-3),),
            all_reduce=((4, 1e6, 1e-3),),
        )

    monkeypatch.setattr(profile, "Machine", Machine)
    monkeypatch.setattr(profile, "measure", measure)
    found = cost(monkeypatch, hardware="measured", runtime="spmd")
    np.testing.assert_allclose(found.tokens_per_second, 1e5, rtol=1e-3)
    assert found.state_bytes == 4 * 2 * (128 * 512 + 128 + 512)
    assert machines == [{"model_dim": 128, "hidden_dim": 512, "dtype": "float32"}]
