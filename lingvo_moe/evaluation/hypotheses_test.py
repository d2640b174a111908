"""Tests of the files of translations."""

import dataclasses
import json
import subprocess
import sys

import pytest

from lingvo_moe.evaluation.evaluate import hypotheses_path, read_hypotheses, write_hypotheses
from lingvo_moe.evaluation.scores import PairOutput, score_pair

# What may go wrong between a list of texts and the lines of a file.
OUTPUT = PairOutput(
    pair="pt_BR-en",
    train_examples=7,
    sources=["um", "dois\n", "três", "quatro"],
    hypotheses=["the cat\nsat on the mat", "", "  two  dogs bark\u2028loudly \r\n", "“x” café"],
    references=["the cat sat on a mat", "nothing", "two dogs bark loudly at night\n", "“x” cafe"],
)


def test_what_is_written_is_read(tmp_path):
    write_hypotheses(tmp_path, "test", OUTPUT)
    again = read_hypotheses(tmp_path, "test", "pt_BR-en")
    assert dataclasses.replace(again, train_examples=7) == OUTPUT
    assert hypotheses_path(tmp_path, "test", "pt_BR-en").read_bytes().count(b"\n") == 4


@pytest.mark.parametrize(("pair", "options"), [("pt_BR-en", []), ("en-zh", ["-tok", "zh"])])
def test_the_sacrebleu_command_gives_the_same_numbers(tmp_path, pair, options):
    texts = {name: getattr(OUTPUT, name) for name in ("sources", "hypotheses", "references")}
    output = PairOutput(pair=pair, train_examples=7, **texts)
    write_hypotheses(tmp_path, "test", output)
    command = [sys.executable, "-m", "sacrebleu", f"{pair}.ref", "-i", f"{pair}.hyp"]
    command += ["-m", "bleu", "chrf", "--chrf-word-order", "2", "-w", "6", *options]
    folder = tmp_path / "hypotheses" / "test"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    bleu, chrf = json.loads(done.stdout)
    score = score_pair(output)
    assert 0 < score.bleu < 100
    assert bleu["score"] == pytest.approx(score.bleu, abs=1e-6)
    assert chrf["score"] == pytest.approx(score.chrf, abs=1e-6)
    assert f"{bleu['name']}|{bleu['signature']}" == f"BLEU|{score.signature}"
    assert f"{chrf['name']}|{chrf['signature']}" == f"chrF2++|{score.chrf_signature}"


def test_missing_and_uneven_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="pt_BR-en"):
        read_hypotheses(tmp_path, "test", "pt_BR-en")
    write_hypotheses(tmp_path, "test", OUTPUT)
    hypotheses_path(tmp_path, "test", "pt_BR-en").write_text("one line\n")
    with pytest.raises(ValueError, match="1 hypotheses"):
        read_hypotheses(tmp_path, "test", "pt_BR-en")
