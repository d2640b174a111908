import pytest

from lingvo_moe.config.params import override
from lingvo_moe.config.registry import get_params
from lingvo_moe.jobs.evaluation import load_translator
from lingvo_moe.jobs.training import train_model
from lingvo_moe.runtimes.local import Local
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.testing.logdirs import training_job
from lingvo_moe.testing.tiny_world import SHRINK

DISPATCHER = "model.moe.training=VExperts(devices=2, slots_per_device=6, groups=2)"


def test_placements_are_named_in_the_order_of_layers():
    task = TranslationTask(override(get_params("tiny.MoE"), [*SHRINK, DISPATCHER]))
    layers = ("encoder/layer_01", "decoder/layer_01")
    assert list(task.placements.items()) == [
        (f"{name}/feed_forward/placement", 8) for name in layers
    ]
    assert TranslationTask(override(get_params("tiny.MoE"), SHRINK)).placements == {}


def test_a_scan_cannot_hold_them():
    params = override(get_params("tiny.MoE"), [*SHRINK, DISPATCHER, "model.scan=True"])
    with pytest.raises(ValueError, match="a scan"):
        TranslationTask(params)


@pytest.mark.slow
def test_another_dispatcher_has_each_expert_once(tmp_path):
    """Decoding and resuming; the logdir has twelve slots for eight experts."""
    changes = (DISPATCHER, "train.max_steps=1")
    train_model(training_job(tmp_path, *changes))
    found = []
    for dispatcher in (DISPATCHER, "model.moe.training=Gather(groups=2, capacity_factor=None)"):
        model_dir = ModelDir.open(tmp_path).with_overrides([dispatcher])
        translator, _ = load_translator(model_dir, Local(model_dir.task))
        found.append([best[0].text for best in translator(["kara mi", "so ti"], "en")])
    assert found[0] == found[1]
    again = training_job(
        tmp_path, "model.moe.training=Gather(groups=2, capacity_factor=None)", "train.max_steps=2"
    )
    assert train_model(again).step == 2


def test_other_experts_cannot_move(tmp_path):
    job = training_job(tmp_path, make_scheduler=lambda task: None)
    with pytest.raises(ValueError, match="Only VExperts"):
        train_model(job)
