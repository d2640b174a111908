import fnmatch
from pathlib import Path

import pytest

from lingvo_moe.config import registry
from lingvo_moe.config.params import override, to_fields
from lingvo_moe.tasks.param_changes import AFTER_TRAINING, RESUMING

PARAMS = registry.get_params("tiny.MoE")


@pytest.mark.parametrize("changeable", [RESUMING, AFTER_TRAINING])
def test_every_pattern_is_of_a_param(changeable):
    paths = list(to_fields(PARAMS))
    assert [text for text in changeable.patterns if not fnmatch.filter(paths, text)] == []


def test_the_error_has_both_values():
    new = override(PARAMS, ["train.seed=77"])
    AFTER_TRAINING.check(Path("there"), PARAMS, new)
    with pytest.raises(ValueError, match="gives 77"):
        RESUMING.check(Path("there"), PARAMS, new)


def test_averages_are_not_lost():
    with_averages = override(PARAMS, ["optimizer.ema_decay=0.9"])
    with pytest.raises(ValueError, match="gives None"):
        RESUMING.check(Path("there"), with_averages, PARAMS)
