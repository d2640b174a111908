"""Tests of scores: numbers by hand, and sacreBLEU's command line as the oracle."""

import json
import os
import random
import subprocess
import sys

import pytest

from lingvo_moe.evaluation.scores import PairOutput, score_pair


def make_output(hypotheses, references, pair="sw-en", train_examples=100):
    return PairOutput(
        pair=pair,
        train_examples=train_examples,
        sources=["source"] * len(references),
        hypotheses=hypotheses,
        references=references,
    )


def noisy_corpus(lines, rates, seed=0):
    """References and, per rate, a copy with that share of the words spoilt."""
    rng = random.Random(seed)
    references = [" ".join(f"w{rng.randrange(200)}" for _ in range(10)) for _ in range(lines)]
    copies = [
        [" ".join("x" if rng.random() < rate else w for w in line.split()) for line in references]
        for rate in rates
    ]
    return references, *copies


def test_bleu_by_hand():
    # One wrong word of five, the last: matches are 4/5 unigrams, 3/4 bigrams, 2/3 trigrams and
    # 1/2 of the 4-grams; their product is 1/5, there is no brevity penalty: 100 * 0.2 ** (1/4).
    score = score_pair(make_output(["a b c d x"], ["a b c d e"]))
    assert score.bleu == pytest.approx(100 * 0.2**0.25)
    # chrF++ has no simple formula, but its signature differs from chrF's.
    assert "nw:2" in score.chrf_signature
    assert "tok:13a" in score.signature


def test_a_clearly_better_system_is_significant_and_worse_is_too():
    references, good, bad = noisy_corpus(100, (0.1, 0.4))
    better = score_pair(make_output(good, references), bad)
    assert better.p_value < 0.05
    assert better.significant
    assert better.delta_bleu > 0
    worse = score_pair(make_output(bad, references), good)
    assert worse.significant
    assert worse.delta_bleu == pytest.approx(-better.delta_bleu)


def test_no_difference_has_a_p_value_of_one():
    # sacreBLEU's own answer is 1 / (samples + 1), as for the surest of differences.
    references, same = noisy_corpus(40, (0.3,))
    assert score_pair(make_output(same, references), same).p_value == 1


def test_where_resampling_says_nothing_there_is_no_p_value():
    references, _ = noisy_corpus(40, (0.3,))
    # Both systems have BLEU 0, so there is no p-value.
    nothing = score_pair(make_output(["x"] * 40, references), ["y"] * 40)
    assert (nothing.bleu, nothing.p_value, nothing.significant) == (0, None, False)
    # Every resample of a single line is that line; sacreBLEU would call any difference certain.
    assert score_pair(make_output(["a b c d e"], ["a b c d e"]), ["a b c d x"]).p_value is None
    # A system with BLEU above 0 is compared.
    assert score_pair(make_output(references, references), ["y"] * 40).p_value < 0.01


def test_few_lines_are_never_significant():
    references, good, bad = noisy_corpus(29, (0.0, 0.9))
    score = score_pair(make_output(good, references), bad)
    assert score.p_value < 0.05
    assert not score.reliable
    assert not score.significant


def test_p_value_is_the_same_each_time_and_that_of_the_command_line(tmp_path):
    references, ours, theirs = noisy_corpus(60, (0.30, 0.34))
    score = score_pair(make_output(ours, references), theirs)
    assert score == score_pair(make_output(ours, references), theirs)
    for name, lines in (("ref", references), ("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "theirs", "ours", "--paired-bs"]
    command += ["--paired-bs-n", "1000", "-m", "bleu", "-f", "json", "-w", "4"]
    environment = {k: v for k, v in os.environ.items() if k != "SACREBLEU_SEED"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    baseline, system = json.loads(done.stdout)
    assert score.baseline_bleu == pytest.approx(baseline["BLEU"]["score"], abs=1e-4)
    assert score.bleu == pytest.approx(system["BLEU"]["score"], abs=1e-4)
    assert score.p_value == pytest.approx(system["BLEU"]["p_value"], abs=1e-4)
    assert 0.001 < score.p_value < 0.999  # else the comparison would prove little


def test_texts_become_single_lines():
    output = make_output(["a\nb\r\nc  ", "x\0y"], ["a\rb c\n", "\ufeffx\u2028y\x85\x1cz"])
    assert output.hypotheses == ("a b c", "x y")
    assert output.references == ("a b c", "x\u2028y\x85\x1cz")


def test_uneven_and_empty_lists_are_refused():
    with pytest.raises(ValueError, match="1 hypotheses"):
        make_output(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="sw-en: no test lines"):
        make_output([], [])
