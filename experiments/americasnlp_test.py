import lzma

from experiments import americasnlp


def test_dev_lines_and_verses_become_train_lines(tmp_path, monkeypatch):
    for split, count in (("train", 2), ("dev", 10), ("test", 1)):
        (tmp_path / "corpus" / split).mkdir(parents=True)
        for side in ("es", "bzd"):
            lines = [f"{side} {split} {i}\n" for i in range(count)]
            (tmp_path / "corpus" / split / f"es-bzd.{side}").write_text("".join(lines))
    (tmp_path / "spa.txt").write_text("uno\n\ntres\n")
    (tmp_path / "bzd.txt.xz").write_bytes(lzma.compress(b"\ndos\nsol\n"))
    files = [f"--verses={tmp_path}/spa.txt", f"--of=bzd={tmp_path}/bzd.txt.xz"]
    argv = ["", f"{tmp_path}/corpus", f"{tmp_path}/more", "--dev_repeats=2", *files]
    monkeypatch.setattr("sys.argv", argv)
    americasnlp.main()

    def lines(split, side):
        return (tmp_path / "more" / split / f"es-bzd.{side}").read_text().splitlines()

    assert lines("dev", "es") == ["es dev 0", "es dev 9"]  # the others are in train
    moved = [f"bzd dev {i}" for i in range(1, 9)]
    assert lines("train", "bzd") == ["bzd train 0", "bzd train 1", *moved, *moved, "sol"]
    assert lines("train", "es")[-1] == "tres"
    assert lines("test", "es") == ["es test 0"]
