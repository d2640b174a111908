"""A shortlist from data to translations."""

import numpy as np
import pytest

import lingvo_moe as lm
from lingvo_moe.inference.shortlist import load_shortlist, make_shortlist
from lingvo_moe.nn.special_tokens import PAD, UNK
from lingvo_moe.serving.formats.saved_model import SavedModel
from lingvo_moe.testing import tiny_world
from lingvo_moe.testing.commands import succeed
from lingvo_moe.testing.logdirs import SMALLEST, random_logdir


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return random_logdir(tmp_path_factory.mktemp("model"), SMALLEST)


def test_candidates_have_the_largest_dice_coefficients(model_dir):
    dataset = tiny_world.dataset()
    made = make_shortlist(model_dir, dataset, 5, 30, 10**6, lambda line: None)
    examples = [
        (set(example.source.tolist()), set(example.target.tolist()), dataset.tags[pair.target])
        for pair in dataset.pairs
        for example in dataset.examples("train", pair.name)
    ]
    pieces = sorted(set().union(*(source for source, _, _ in examples)) - set(range(UNK + 1)))
    for piece in pieces[:: len(pieces) // 12]:
        of_piece = [target for source, target, _ in examples if piece in source]
        dice = {}
        for token in set().union(*of_piece) - set(range(UNK + 1)):
            both = sum(token in target for target in of_piece)
            either = len(of_piece) + sum(token in target for _, target, _ in examples)
            dice[token] = 2 * both / either
        best = sorted(dice, key=lambda token: (-dice[token], token))[:5]
        assert made.by_piece[piece].tolist() == best + [PAD] * (5 - len(best))
    for tag, row in zip(made.tags, made.by_language, strict=True):
        counts = np.zeros(512, int)
        for _, target, language in examples:
            counts[sorted(target)] += language == tag
        counts[: UNK + 1] = 0
        assert counts[row[row > 0]].tolist() == sorted(counts[counts > 0].tolist())[::-1][:30]


def test_from_the_tool_to_translations(model_dir, tmp_path):
    model = lm.load(model_dir.path)
    with pytest.raises(ValueError, match="Make it"):
        model.translate(["kara"], "en", shortlist=True)
    where = f"--logdir={model_dir.path}", f"--data={tiny_world.dataset().directory}"
    result = succeed("shortlist", *where, "--candidates=3", "--frequent=10", "--sentences=500")
    assert result.stdout == f"{model_dir.shortlist_path}\n"
    made = load_shortlist(model_dir)
    options = {"shortlist": True, "tokens": True, "n_best": 2, "target_prefix": "no"}
    sentences = ["kara mi", "mira so kara", ""]
    found = model.translate(sentences, "en", **options)
    read, written = (model_dir.vocabulary(side) for side in ("source", "target"))
    tag = made.tags.tolist().index(model_dir.tag("en"))
    for sentence, best in zip(sentences[:2], found, strict=False):
        ids = [*made.by_piece[read.encode([sentence])[0]].ravel(), *made.by_language[tag]]
        listed = {*written.pieces(ids), *written.pieces(written.encode(["no"])[0]), "</s>"}
        for translation in best:
            assert {token.text for token in translation.tokens} <= listed
            assert translation.text.startswith("no")
        [alone] = model.translate([sentence], "en", **options)
        assert [t.text for t in alone] == [t.text for t in best]
    content = model_dir.shortlist_path.read_bytes()
    for damaged in (b"", content[: len(content) // 2]):
        model_dir.shortlist_path.write_bytes(damaged)
        with pytest.raises(ValueError, match="no shortlist"):
            load_shortlist(model_dir)
    model_dir.shortlist_path.write_bytes(content)
    with pytest.raises(ValueError, match="an export"):
        SavedModel().export(model_dir.with_overrides(["decoding.shortlist=True"]), tmp_path / "e")
