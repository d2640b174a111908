"""Corpora of verses: splits by verse, ranges, the power law."""

from experiments.verses import ENGLISH, Verses, make


def _write_ebible(directory, **texts):
    """A checkout with the verses "GEN 1:1", …; texts: language -> its lines."""
    for name in ("metadata", "corpus"):
        (directory / name).mkdir()
    number = len(texts["eng"])
    names = "".join(f"GEN 1:{n}\n" for n in range(1, number + 1))
    (directory / "metadata" / "vref.txt").write_text(names)
    for language, lines in texts.items():
        name = ENGLISH if language == "eng" else f"{language}.txt"
        (directory / "corpus" / name).write_text("".join(f"{line}\n" for line in lines))
    return [(language, f"{language}.txt") for language in texts if language != "eng"]


def test_a_verse_is_in_the_same_split_in_all_languages(tmp_path):
    texts = {name: [f"{name} {n}" for n in range(400)] for name in ("eng", "aa", "bb")}
    languages = _write_ebible(tmp_path, **texts)
    made = make(tmp_path, languages, Verses(1, 0.0, 1000, 4))
    sources = {split: {} for split in made}
    for split, examples in made.items():
        for pair, source, target in examples:
            assert target == source.replace("eng", pair.removeprefix("en-"))
            sources[split].setdefault(pair, set()).add(source)
    train, dev, test = sources.values()
    assert (train["en-aa"], dev["en-aa"]) == (train["en-bb"], dev["en-bb"])
    assert train["en-aa"].isdisjoint(dev["en-aa"] | test["en-aa"])
    assert len(test["en-aa"]) == 4


def test_verses_that_are_one_in_the_text_are_left_out(tmp_path):
    languages = _write_ebible(
        tmp_path, eng=["a", "b", "c", "d", "e"], aa=["A", "B", "<range>", "", "E"]
    )
    made = make(tmp_path, languages, Verses(1, 0.0, 9, 9, from_english=False))
    found = sorted(one for examples in made.values() for one in examples)
    assert found == [("aa-en", "A", "a"), ("aa-en", "E", "e")]


def test_languages_keep_fewer_lines_by_the_power_law(tmp_path):
    lines = [str(n) for n in range(500)]
    languages = _write_ebible(tmp_path, eng=lines, aa=lines, bb=lines, cc=lines, dd=lines)
    made = make(tmp_path, languages, Verses(2, 1.0, 2, 3, evenly=False))
    pairs = [pair for pair, _, _ in made["train"]]
    assert pairs.count("en-aa") == 2 * pairs.count("en-cc") > 400
    assert set(pairs) == {"en-aa", "en-cc"}
    assert [len(made[split]) for split in ("dev", "test")] == [4, 6]
