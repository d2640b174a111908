"""Fresh random models beside transformers 4.49, where `make bench` has installed it."""

import subprocess
from pathlib import Path

import pytest

from lingvo_moe.pretrained.hugging_face import import_model
from lingvo_moe.testing import hugging_face as testing

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "peers" / ".venv" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="make bench installs transformers")
@pytest.mark.parametrize(("seed", "d_model"), [(7, 24), (8, 40)])
def test_other_sizes_and_weights(seed, d_model, tmp_path):
    program = ROOT / "benchmarks" / "hugging_face_fixtures.py"
    command = [PYTHON, program, tmp_path / "made", f"--seed={seed}", f"--d_model={d_model}"]
    subprocess.run(command, check=True, env={"HF_HUB_OFFLINE": "1"})
    for name in testing.NAMES:
        source = tmp_path / "made" / name
        model_dir = import_model(source, tmp_path / name)
        runtime = testing.loaded(model_dir)
        testing.assert_same_tokens(model_dir, source)
        testing.assert_same_log_probs(model_dir, runtime, source)
        testing.assert_same_searches(model_dir, runtime, source)
