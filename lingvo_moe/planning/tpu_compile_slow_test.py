"""With the real TPU compiler; minutes."""

import pytest

from lingvo_moe.planning.tpu_compile import compile_step

pytestmark = pytest.mark.slow
pytest.importorskip("jax")
pytest.importorskip("libtpu")

# Of full width, so that what is kept for the backward pass outweighs the rest.
SMALL = (
    *("source_vocab_size=1024", "target_vocab_size=1024", "model.moe.num_experts=8"),
    *("model.moe.training.groups=8", "input.batch_size=128"),
)


def compiled(layers, *overrides):
    depth = (f"model.num_encoder_layers={layers}", f"model.num_decoder_layers={layers}")
    return compile_step("m4.MoE128E12L", [*SMALL, *depth, *overrides], "v3:2x2")


def exchanges(found):
    return sum(row["times"] for row in found["collectives"] if row["kind"] == "all-to-all")


def test_a_step_for_eight_cores():
    kept, again = (
        compiled(2, "model.scan=False", f"model.remat={remat}") for remat in (False, True)
    )
    assert (kept["devices"], kept["device_kind"]) == (8, "TPU v3")
    # Two MoE layers, there and back, forward and backward; rematerialised, forward once more.
    assert exchanges(kept) == 8
    assert exchanges(again) == 12
    assert kept["argument_bytes"] == again["argument_bytes"]
    assert again["temp_bytes"] < 0.8 * kept["temp_bytes"]
    assert again["flops"] > 1.2 * kept["flops"]


def test_a_loop_is_compiled_once_however_long():
    """Small sizes, because the test is about growth."""
    narrow = ("model.model_dim=256", "model.hidden_dim=512", "model.num_heads=2")
    short, long = (compiled(layers, *narrow) for layers in (4, 16))
    # Of 2 and of 8 MoE layers a side: two forward, two again, two backward.
    assert exchanges(short) == 6 * 4
    assert exchanges(long) == 6 * 16
    assert long["code_bytes"] < 1.1 * short["code_bytes"]
    assert long["compile_cpu_seconds"] < 1.5 * short["compile_cpu_seconds"]
    assert long["argument_bytes"] > 3 * short["argument_bytes"]


def test_beam_search_for_eight_cores():
    short = ("model.num_encoder_layers=2", "model.num_decoder_layers=2", "input.source_length=16")
    step = compile_step("m4.MoE128E12L", [*SMALL, *short], "v3:2x2")
    search = compile_step("m4.MoE128E12L", [*SMALL, *short], "v3:2x2", sentences=8)
    assert search["program"] == "beam search of 8 sentences of 16 tokens"
    # Weights without slots, which Adafactor makes small: vectors of rows and columns.
    assert 0.9 * step["argument_bytes"] < search["argument_bytes"] < step["argument_bytes"]
    # The encoder's layer and the decoder's in the loop, there and back.
    assert exchanges(search) >= 4


def test_unknown_topology():
    with pytest.raises(ValueError, match="v99:2x2"):
        compile_step("m4.MoE128E12L", list(SMALL), "v99:2x2")
