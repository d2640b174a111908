"""Translating a split of a dataset, pair by pair, for scoring."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.scores import PairOutput
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translator import Translation, Translator


def translate_pair(
    translator: Callable[..., list[list[Translation]]],
    dataset: Dataset,
    split: str,
    name: str,
    report: Callable[[str], None],
) -> PairOutput:
    """Translates one pair's sentences of a split.

    Args:
        translator: the model.
        dataset: prepared data with raw text for that split.
        split: "dev" or "test".
        name: the pair.
        report: takes a warning of sentences that are too long.

    Raises:
        ValueError: unknown pair, or one whose task the model was not trained on.
    """
    pair = dataset.pair(name)
    examples = dataset.examples(split, name)
    sources = [example.source_text for example in examples]
    translations = translator(
        sources, pair.target, pair.source, warn=lambda line: report(f"{name}: {line}")
    )
    return PairOutput(
        pair=name,
        train_examples=pair.examples.get("train", 0),
        sources=sources,
        hypotheses=[best[0].text for best in translations],
        references=[example.target_text for example in examples],
    )


def translate_split(
    translators: Iterable[tuple[str, Translator]],
    dataset: Dataset,
    split: str,
    report: Callable[[str], None],
) -> list[PairOutput]:
    """Translates pairs of a split, each by its own translator.

    Args:
        translators: (pair, its translator), in the order to work in.
        dataset: prepared data.
        split: "dev" or "test".
        report: takes a line of progress a pair.

    Raises:
        ValueError: no pair has a line in that split.
    """
    outputs = []
    for name, translator in translators:
        if not dataset.pair(name).examples.get(split):
            report(f"{name}: no {split} lines, passed over")
            continue
        outputs.append(translate_pair(translator, dataset, split, name, report))
        report(f"{name}: {len(outputs[-1].sources)} lines translated")
    if not outputs:
        raise ValueError(f"No pair has {split} lines; nothing to evaluate.")
    return outputs


def load_translator(
    model_dir: ModelDir, runtime, step: int | None = None
) -> tuple[Translator, int]:
    """Puts a logdir's checkpoint, by default its best, into a runtime.

    Returns:
        The translator and the checkpoint's step.
    """
    checkpoint = model_dir.read_checkpoint(step, lambda found: runtime.restore(found.tensors))
    return Translator.of(model_dir, runtime.translate), checkpoint.step


def baseline_translators(
    directory: Path, pairs: Sequence[str], make_runtime
) -> Iterator[tuple[str, Translator]]:
    """(pair, its bilingual baseline's translator) for each logdir directory/PAIR.

    One runtime serves them all, one after another: only its weights change.
    """
    runtime = None
    for pair in pairs:
        model_dir = ModelDir.open(directory / pair)
        runtime = runtime or make_runtime(model_dir.task)
        yield pair, load_translator(model_dir, runtime)[0]
