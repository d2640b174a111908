"""With the real TPU compiler; minutes."""

import pytest

from lingvo_moe.planning.tpu_compile import compile_step
from lingvo_moe.sharding import hlo

pytestmark = pytest.mark.slow
pytest.importorskip("jax")
pytest.importorskip("libtpu")

# Two layers a side of full width, so that what is kept for the backward pass outweighs the rest.
SMALL = (
    *("model.num_encoder_layers=2", "model.num_decoder_layers=2", "source_vocab_size=1024"),
    *("target_vocab_size=1024", "model.moe.num_experts=8", "model.moe.num_groups=8"),
    "input.batch_size=128",
)


def test_a_step_for_eight_cores():
    kept, again = (
        compile_step("m4.MoE128E12L", [*SMALL, f"model.remat={remat}"], "v3:2x2")
        for remat in (False, True)
    )
    assert (kept.devices, kept.device_kind) == (8, "TPU v3")
    # Two MoE layers, there and back, forward and backward; rematerialised, forward once more.
    assert hlo.count(kept.collectives)["all-to-all"] == 8
    assert hlo.count(again.collectives)["all-to-all"] == 12
    assert kept.argument_bytes == again.argument_bytes
    assert again.temp_bytes < 0.8 * kept.temp_bytes
    assert again.flops > 1.2 * kept.flops


def test_unknown_topology():
    with pytest.raises(ValueError, match=r"Topology 'v99:2x2'.*Give a generation and its chips"):
        compile_step("m4.MoE128E12L", list(SMALL), "v99:2x2")
