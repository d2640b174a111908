from lingvo_moe.core import child, plugins
from lingvo_moe.core.params import override
from lingvo_moe.data import blocks, prepare
from lingvo_moe.data.prepare_params import PrepareParams

PARAMS = PrepareParams(source_vocab_size=300, target_vocab_size=300)
_RULE = """
import dataclasses, os, time
from pathlib import Path
from lingvo_moe.data.cleaning.base import CleaningRule

@dataclasses.dataclass(frozen=True, kw_only=True)
class Odd(CleaningRule):
    name = "odd"

    def drops(self, texts, languages):
        here = Path(__file__).parent
        (here / f"process-{os.getpid()}").touch()
        end = time.monotonic() + 60
        while len(list(here.glob("process-*"))) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        return texts[0].endswith("1")
"""


def _corpus(directory, lines):
    (directory / "train").mkdir(parents=True)
    text = "".join(f"Satz {i}\tline {i}\n" for i in range(lines))
    (directory / "train/de-en.tsv").write_text(text)
    return directory


def test_others_do_the_work_of_a_process_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "_BYTES_A_HELPER", 1)
    monkeypatch.setattr(child.sys, "executable", "/bin/false")
    corpus = _corpus(tmp_path / "corpus", 9)
    dataset = prepare.prepare(corpus, tmp_path / "data", PARAMS, processes=2)
    assert dataset.pair("de-en").examples == {"train": 9}


def test_helpers_know_rules_from_files(tmp_path, monkeypatch, fresh_plugins):
    """The rule leaves a file for each process that applies it, and waits for the other's."""
    monkeypatch.setattr(prepare, "_BYTES_A_HELPER", 1)
    monkeypatch.setattr(blocks, "_BLOCK_LINES", 1)
    (tmp_path / "odd_rule.py").write_text(_RULE)
    plugins.import_plugins([str(tmp_path / "odd_rule.py")])
    params = override(PARAMS, ["cleaning=(Odd(),)"])
    corpus = _corpus(tmp_path / "corpus", 20)
    dataset = prepare.prepare(corpus, tmp_path / "data", params, processes=2)
    assert dataset.checks["de-en"]["odd"] == 2
    assert len(list(tmp_path.glob("process-*"))) == 2
