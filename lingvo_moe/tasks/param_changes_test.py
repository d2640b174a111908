import fnmatch
from pathlib import Path

import pytest

from lingvo_moe.config import registry
from lingvo_moe.config.params import override, to_fields
from lingvo_moe.tasks.param_changes import AFTER_TRAINING, RESUMING, RESUMING_BY_BLEU

PARAMS = registry.get_params("tiny.MoE")


@pytest.mark.parametrize("changeable", [RESUMING, RESUMING_BY_BLEU, AFTER_TRAINING])
def test_every_pattern_is_of_a_param(changeable):
    paths = list(to_fields(PARAMS))
    assert [text for text in changeable.patterns if not fnmatch.filter(paths, text)] == []


def test_of_decoding_only_what_keeps_the_best_translation_may_change_with_dev_bleu():
    paths = [path for path in to_fields(PARAMS) if path.startswith("decoding.")]
    fields = {path.split(".")[1] for path in paths if RESUMING_BY_BLEU._has(path)}
    assert fields == {"batch_tokens", "separate_caches_from", "n_best", "tokens"}
    assert all(RESUMING._has(path) for path in paths)


def test_the_error_has_both_values():
    new = override(PARAMS, ["train.seed=77"])
    AFTER_TRAINING.check(Path("there"), PARAMS, new)
    with pytest.raises(ValueError, match="gives 77"):
        RESUMING.check(Path("there"), PARAMS, new)


def test_averages_are_not_lost():
    with_averages = override(PARAMS, ["optimizer.ema_decay=0.9"])
    with pytest.raises(ValueError, match="gives None"):
        RESUMING.check(Path("there"), with_averages, PARAMS)
