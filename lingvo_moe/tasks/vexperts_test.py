import pytest

from lingvo_moe.core.params import override
from lingvo_moe.core.registry import get_params
from lingvo_moe.tasks.training import train_model
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK

DISPATCHER = "model.moe.dispatcher=VExperts(devices=2, slots_per_device=6)"


def test_placements_are_named_in_the_order_of_layers():
    task = TranslationTask(override(get_params("tiny.MoE"), [*SHRINK, DISPATCHER]))
    layers = ("encoder/layer_01", "decoder/layer_01")
    assert list(task.placements.items()) == [
        (f"{name}/feed_forward/placement", 8) for name in layers
    ]
    assert TranslationTask(override(get_params("tiny.MoE"), SHRINK)).placements == {}


def test_a_scan_cannot_hold_them():
    params = override(get_params("tiny.MoE"), [*SHRINK, DISPATCHER, "model.scan=True"])
    with pytest.raises(ValueError, match="Layers in a scan cannot use VExperts"):
        TranslationTask(params)


def test_other_experts_cannot_move(tmp_path):
    job = training_job(tmp_path, make_scheduler=lambda task: None)
    with pytest.raises(ValueError, match="Only VExperts can move; pass --set="):
        train_model(job)
