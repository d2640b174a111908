import lzma

from experiments import americasnlp


def test_dev_lines_and_verses_become_train_lines(tmp_path, monkeypatch):
    for split, count in (("train", 2), ("dev", 60), ("test", 1)):
        (tmp_path / "corpus" / split).mkdir(parents=True)
        for language in ("bzd", "gn"):
            order = range(count) if language == "bzd" else range(count - 1, -1, -1)
            for side in ("es", language):
                text = "".join(f"{side} {split} {i}\n" for i in order)
                (tmp_path / "corpus" / split / f"es-{language}.{side}").write_text(text)
    (tmp_path / "spa.txt").write_text("uno\n\ntres\n")
    (tmp_path / "bzd.txt.xz").write_bytes(lzma.compress(b"\ndos\nsol\n"))
    verses = f"--verses={tmp_path}/spa.txt,bzd={tmp_path}/bzd.txt.xz"
    argv = ["", f"{tmp_path}/corpus", f"{tmp_path}/more", f"--dev={tmp_path}/other", verses]
    monkeypatch.setattr("sys.argv", argv)
    americasnlp.main()

    def lines(split, language, side, corpus="more"):
        path = tmp_path / corpus / split / f"es-{language}.{side}"
        return path.read_text().splitlines()

    dev = lines("dev", "bzd", "es")
    assert 0 < len(dev) < 15
    assert set(dev) == set(lines("dev", "gn", "es"))  # whatever their order
    for language in ("bzd", "gn"):
        spanish, other = (lines("train", language, side, "other") for side in ("es", language))
        assert not set(dev) & set(spanish)
        assert len(spanish) == len(other) == 60 - len(dev)
        numbers = [[line.split()[1:] for line in side] for side in (spanish, other)]
        assert numbers[0] == numbers[1]  # the lines still belong together
    assert lines("train", "bzd", "bzd") == ["bzd train 0", "bzd train 1", "sol"]
    assert lines("train", "bzd", "es")[-1] == "tres"
    assert lines("test", "bzd", "es") == ["es test 0"]
