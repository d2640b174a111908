"""Imported checkpoints compute what transformers computes, and damaged ones are refused."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import lingvo_moe as lm
from lingvo_moe.nn.layer import EVALUATION
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.pretrained.hugging_face import import_model
from lingvo_moe.serving.formats.hugging_face import HuggingFace
from lingvo_moe.system import safetensors
from lingvo_moe.testing import hugging_face as testing

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module", params=testing.NAMES)
def imported(request, tmp_path_factory):
    """(the checkpoint, the logdir made of it)."""
    source = testing.FIXTURES / request.param
    return source, import_model(source, tmp_path_factory.mktemp("import") / request.param)


def test_logits_are_those_of_transformers(imported):
    source, model_dir = imported
    theta, expected = testing.theta_of(model_dir), testing.reference(source)
    with np.load(source / "reference.npz") as stored:
        for name, theirs in stored.items():
            ids = expected["sources"][int(name)], [2, *expected["targets"][1 - int(name)]]
            rows = [tf.constant([testing.exchanged(row)]) for row in ids]
            sides = (Tokens(row, tf.ones_like(row)) for row in (rows[0], rows[1][:, : len(theirs)]))
            logits = model_dir.task.transformer.fprop(theta, *sides, EVALUATION).outputs[0].numpy()
            logits = np.concatenate([logits[:, 1:2], logits[:, :1], logits[:, 2:]], axis=1)
            np.testing.assert_allclose(logits, theirs, atol=1e-5)


def test_tokens_log_probs_and_searches_are_those_of_transformers(imported):
    source, model_dir = imported
    runtime = testing.loaded(model_dir)
    testing.assert_same_tokens(model_dir, source)
    testing.assert_same_log_probs(model_dir, runtime, source)
    testing.assert_same_searches(model_dir, runtime, source)


@pytest.mark.slow
def test_import_export_import_gives_the_same_bytes(imported, tmp_path):
    source, model_dir = imported
    HuggingFace().export(model_dir, tmp_path / source.name)
    again = import_model(tmp_path / source.name, tmp_path / "again")
    names = sorted(p.relative_to(again.path) for p in again.path.rglob("*") if p.is_file())
    assert len(names) >= 7
    for name in names:
        if not name.name.startswith("."):
            assert (again.path / name).read_bytes() == (model_dir.path / name).read_bytes(), name
    for shard in (tmp_path / source.name).glob("*.safetensors"):
        for name, array in safetensors.load(shard).arrays.items():
            assert array.dtype == original(source)[name].dtype
            np.testing.assert_array_equal(array, original(source)[name])


def original(source):
    """The tensors of a fixture."""
    shards = [safetensors.load(shard).arrays for shard in source.glob("*.safetensors")]
    return {name: shard[name] for shard in shards for name in shard}


@pytest.mark.slow
def test_a_model_is_used_as_any_other(imported):
    source, model_dir = imported
    assert len(model_dir.tags) == (100 if source.name == "m2m100" else 202)
    assert model_dir.fitted.numbers(min(model_dir.tags))["length_ratio"] == 4.0
    if source.name != "nllb_moe":
        return
    model = lm.load(model_dir.path)
    assert model.languages == sorted(model_dir.tags)
    reads, writes = testing.languages(model_dir)
    texts = testing.reference(source)["texts"][:2]
    options = {"source_language": reads, "n_best": 2, "length_ratio": 0.5}
    first, _ = model.translate(texts, writes, **options)
    (alone,) = model.translate(texts[:1], writes, **options)
    assert [one.text for one in first] == [one.text for one in alone]
    np.testing.assert_allclose(
        [one.score for one in first], [one.score for one in alone], atol=1e-5
    )
    with pytest.raises(ValueError, match="needs the language of its sources"):
        model.translate(texts, writes)
    with pytest.raises(ValueError, match="does not translate into 'xx'"):
        model.translate(texts, "xx", source_language=reads)
    # The score of a translation is that of the search: the sum over its pieces; the tag is given.
    (score,) = model.score(texts[:1], ["a b"], writes, source_language=reads)
    assert len(score.tokens) == len(model_dir.vocabulary("target").encode(["a b"])[0]) + 1


def copy_of(name, directory):
    """A copy of a fixture, to be damaged."""
    shutil.copytree(testing.FIXTURES / name, directory)
    return directory


def edit(path, **changes):
    """Changes fields of a JSON file; None removes one."""
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))


def resave(path, change):
    """Writes a safetensors file again with other arrays."""
    arrays = {name: np.array(array) for name, array in safetensors.load(path).arrays.items()}
    change(arrays)
    safetensors.save(path, arrays, {})


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def point_outside(directory):
    index = json.loads((directory / INDEX).read_text())
    name = next(iter(index["weight_map"]))
    edit(directory / INDEX, weight_map=index["weight_map"] | {name: "../secret.safetensors"})


def unlist(directory):
    index = json.loads((directory / INDEX).read_text())
    name = next(iter(index["weight_map"]))
    del index["weight_map"][name]
    edit(directory / INDEX, weight_map=index["weight_map"])


def add_tokens(directory, **ids):
    (directory / "added_tokens.json").write_text(json.dumps(ids))


def pickle_only(directory):
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")


def tokenizer_with(*tokens):
    """Writes a tokenizer.json with these tokens, and a language."""
    added = [{"id": 323, "content": "eng_Latn"}, *tokens]
    return lambda d: (d / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))


def settings_with(index):
    """Writes a tokenizer_config.json with a language at this id."""
    text = json.dumps({"added_tokens_decoder": {index: {"content": "eng_Latn"}}})
    return lambda d: (d / "tokenizer_config.json").write_text(text)


DAMAGES = {
    "a file cut short": ("nllb", lambda d: truncate(d / WEIGHTS), "is damaged"),
    "a missing shard": (
        "nllb_moe", lambda d: (d / "model-00002-of-00004.safetensors").unlink(), "model-00002"
    ),
    "a path in the index": ("nllb_moe", point_outside, "names the file"),
    "an index without a tensor": ("nllb_moe", unlist, "does not list"),
    "an unknown tensor": (
        "nllb",
        lambda d: resave(d / WEIGHTS, lambda a: a.update({"model.extra": np.zeros(2, np.float32)})),
        "has a tensor",
    ),
    "no tensor": (
        "nllb",
        lambda d: resave(d / WEIGHTS, lambda a: a.pop("model.decoder.layer_norm.bias")),
        "has no tensor",
    ),
    "languages after the source": (
        "nllb",
        lambda d: (d / "tokenizer_config.json").write_text('{"legacy_behaviour": true}'),
        "legacy_behaviour",
    ),
    "another shape": ("nllb", lambda d: edit(d / "config.json", d_model=32), "must be"),
    "another table of logits": (
        "nllb",
        lambda d: resave(
            d / WEIGHTS, lambda a: a.update({"lm_head.weight": 2 * a["model.shared.weight"]})
        ),
        "differs from",
    ),
    "values that are not finite": (
        "m2m100",
        lambda d: resave(d / WEIGHTS, lambda a: a["model.encoder.layer_norm.bias"].fill(np.nan)),
        "not finite",
    ),
    "a pickle": ("nllb", pickle_only, "save_pretrained"),
    "no weights": ("nllb", lambda d: (d / WEIGHTS).unlink(), "has neither"),
    "another kind": ("nllb", lambda d: edit(d / "config.json", model_type="bart"), "'bart'"),
    "another activation": (
        "nllb", lambda d: edit(d / "config.json", activation_function="gelu"), "'gelu'"
    ),
    "sparse steps that differ": (
        "nllb_moe", lambda d: edit(d / "config.json", decoder_sparse_step=1), "must be equal"
    ),
    "no size": ("nllb", lambda d: edit(d / "config.json", d_model=None), "has no field"),
    "no tokenizer": ("nllb", lambda d: (d / "sentencepiece.bpe.model").unlink(), "has no"),
    "no languages": ("nllb", lambda d: (d / "added_tokens.json").unlink(), "no list of its lang"),
    "a tokenizer of another model": (
        "m2m100", lambda d: edit(d / "vocab.json", **{"<pad>": 7}), "must begin"
    ),
    "more ids than rows": ("nllb", settings_with("999"), "326 rows"),
    "ids that clash": ("nllb", settings_with("9"), "id 9"),
    "tokens of texts": (
        "nllb",
        tokenizer_with({"id": 324, "content": "covid", "special": False}),
        "ordinary text",
    ),
    "tokens that are none": (
        "nllb",
        lambda d: (d / "tokenizer.json").write_text('{"added_tokens": null}'),
        "no list",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoints_are_refused_and_nothing_is_written(damage, tmp_path):
    name, spoil, message = DAMAGES[damage]
    source = copy_of(name, tmp_path / "source")
    spoil(source)
    with pytest.raises((ValueError, OSError), match=message) as error:
        import_model(source, tmp_path / "output")
    assert str(source) in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_ids_of_languages_come_from_the_tokenizer_s_files(tmp_path):
    source = copy_of("nllb", tmp_path / "source")
    added = [{"id": 325, "content": "eng_Latn"}, {"id": 324, "content": "tyv_Cyrl"}]
    (source / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    tags = import_model(source, tmp_path / "logdir").tags
    assert tags == {"eng_Latn": 325, "tyv_Cyrl": 324}


def test_languages_of_early_versions_are_in_a_file_of_their_own(tmp_path):
    """Tokenizers of transformers before 4.34 list added tokens only there."""
    source = copy_of("nllb", tmp_path / "source")
    (source / "tokenizer.json").unlink(missing_ok=True)
    (source / "tokenizer_config.json").unlink(missing_ok=True)
    add_tokens(source, eng_Latn=325, tyv_Cyrl=324)
    assert import_model(source, tmp_path / "a").tags == {"eng_Latn": 325, "tyv_Cyrl": 324}
    tokenizer_with()(source)  # this file comes first
    assert import_model(source, tmp_path / "b").tags == {"eng_Latn": 323}
    (source / "tokenizer.json").write_text("{}")  # without languages
    assert import_model(source, tmp_path / "c").tags == {"eng_Latn": 325, "tyv_Cyrl": 324}


def test_an_index_may_list_copies_of_the_embedding_that_no_shard_has(tmp_path):
    source = copy_of("nllb_moe", tmp_path / "source")
    index = json.loads((source / INDEX).read_text())
    (shard,) = {f for name, f in index["weight_map"].items() if name.endswith("shared.weight")}
    copies = dict.fromkeys(("lm_head.weight", "model.encoder.embed_tokens.weight"), shard)
    edit(source / INDEX, weight_map=index["weight_map"] | copies)
    tensors = import_model(source, tmp_path / "a").read_checkpoint().tensors
    same = import_model(testing.FIXTURES / "nllb_moe", tmp_path / "b").read_checkpoint().tensors
    for name, value in same.items():
        np.testing.assert_array_equal(tensors[name], value)


def test_what_was_not_imported_is_not_exported(imported, tmp_path):
    _, model_dir = imported
    shutil.copytree(model_dir.path, tmp_path / "logdir")
    shutil.rmtree(tmp_path / "logdir" / "huggingface")
    with pytest.raises(ValueError, match=r"has no huggingface/config\.json"):
        HuggingFace().export(type(model_dir).open(tmp_path / "logdir"), tmp_path / "output")
    assert not (tmp_path / "output").exists()


def test_a_changed_function_is_not_exported(imported, tmp_path):
    model_dir = imported[1]
    params = lm.evolve(model_dir.params, "model.scale_embedding", False)
    changed = dataclasses.replace(model_dir, params=params)
    message = r"model\.scale_embedding is False, and was True in the im.* --format=safetensors"
    with pytest.raises(ValueError, match=message):
        HuggingFace().export(changed, tmp_path / "output")


def test_the_share_of_masked_outputs_is_exported(tmp_path):
    model_dir = import_model(testing.FIXTURES / "nllb_moe", tmp_path / "logdir")
    params = lm.evolve(model_dir.params, "model.moe.expert.mask_rate", 0.0)
    HuggingFace().export(dataclasses.replace(model_dir, params=params), tmp_path / "output")
    moe = import_model(tmp_path / "output", tmp_path / "again").params.model.moe
    assert moe.expert.mask_rate == 0.0
