"""The corpora of learning.py and real_text.py, and their preparation."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lingvo_moe import api
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.prepare import PrepareParams, prepare_synthetic

# name -> (directories of text, options of preparation); without directories the synthetic languages
CORPORA: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "synthetic": ((), {"source_vocab_size": 1536, "target_vocab_size": 768}),
    "tldr": (("tldr",), {"joint_vocab": True}),
    "tldr4k": (("tldr",), {"joint_vocab": True, "source_vocab_size": 4000}),
    "tldr8k": (("tldr",), {"joint_vocab": True, "source_vocab_size": 8000}),
    "wikimessages": (("wikimessages",), {"joint_vocab": True}),
    "wikimessages4k": (("wikimessages",), {"joint_vocab": True, "source_vocab_size": 4000}),
    "both": (("tldr", "wikimessages"), {"joint_vocab": True}),
    "both8k": (("tldr", "wikimessages"), {"joint_vocab": True, "source_vocab_size": 8000}),
    "both4k": (("tldr", "wikimessages"), {"joint_vocab": True, "source_vocab_size": 4000}),
}


def prepared(directory: Path, corpora: Path, name: str) -> Dataset:
    """The dataset of a corpus; it is prepared if `directory` does not exist.

    Args:
        directory: of the dataset.
        corpora: has a directory of text for each corpus that is not synthetic.
        name: a key of CORPORA.
    """
    if not directory.exists():
        sources, options = CORPORA[name]
        if sources:
            api.prepare(_merged(corpora, sources), directory, **options)
        else:
            prepare_synthetic(directory, PrepareParams(**options))
    return Dataset.load(directory)


def _merged(corpora: Path, sources: Sequence[str]) -> Any:
    """One corpus: a directory, or the lines of several."""
    if len(sources) == 1:
        return corpora / sources[0]
    return {
        split: [line for source in sources for line in _lines(corpora / source / split)]
        for split in ("train", "dev", "test")
    }


def _lines(directory: Path) -> Iterator[tuple[str, str, str]]:
    for path in sorted(directory.glob("*.en")):
        pair = path.name.removesuffix(".en")
        if pair.endswith("-en"):
            source = path.with_name(f"{pair}.{pair.removesuffix('-en')}")
            lines = (p.read_text("utf-8").split("\n")[:-1] for p in (source, path))
            yield from ((pair, *both) for both in zip(*lines, strict=True))
