import fnmatch
from pathlib import Path

import pytest

from lingvo_moe.core import registry
from lingvo_moe.core.params import override, to_fields
from lingvo_moe.tasks.param_changes import AFTER_TRAINING, RESUMING, RESUMING_BY_BLEU

PARAMS = registry.get_params("tiny.MoE")


@pytest.mark.parametrize("changeable", [RESUMING, RESUMING_BY_BLEU, AFTER_TRAINING])
def test_every_pattern_is_of_a_param(changeable):
    paths = list(to_fields(PARAMS))
    assert [text for text in changeable.patterns if not fnmatch.filter(paths, text)] == []


def test_of_decoding_only_what_keeps_the_best_translation_may_change_with_dev_bleu():
    paths = [path for path in to_fields(PARAMS) if path.startswith("decoding.")]
    fields = {path.split(".")[1] for path in paths if RESUMING_BY_BLEU.includes(path)}
    assert fields == {"batch_tokens", "cache", "n_best", "tokens"}
    assert all(RESUMING.includes(path) for path in paths)


def test_the_error_has_both_values_and_the_time():
    new = override(PARAMS, ["train.seed=77"])
    AFTER_TRAINING.check(Path("there"), PARAMS, new)
    message = (
        f"Logdir there has a model with train.seed={PARAMS.train.seed}, but --set gives 77; it "
        f"cannot change when training resumes. Leave out this --set, or train a new model in "
        f"another --logdir; with --init_from=there it starts from these weights."
    )
    with pytest.raises(ValueError, match="Logdir there has") as caught:
        RESUMING.check(Path("there"), PARAMS, new)
    assert str(caught.value) == message


def test_averages_are_not_lost():
    with_averages = override(PARAMS, ["optimizer.ema_decay=0.9"])
    with pytest.raises(ValueError, match=r"optimizer\.ema_decay=0\.9, but --set gives None"):
        RESUMING.check(Path("there"), with_averages, PARAMS)
    frozen = ["optimizer.rate_factors=(('encoder',0.0),)"]
    RESUMING.check(Path("there"), PARAMS, override(PARAMS, frozen))
    with pytest.raises(ValueError, match=r"when training resumes with optimizer\.ema_decay\. Leav"):
        RESUMING.check(Path("there"), with_averages, override(with_averages, frozen))
