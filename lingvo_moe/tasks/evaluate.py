"""Evaluates a trained model on a split: checks everything, translates, writes the report."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lingvo_moe.core.files import check_output, new_directory
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation import tokenizers
from lingvo_moe.evaluation.baselines import Baselines
from lingvo_moe.evaluation.evaluate import write_report
from lingvo_moe.evaluation.report import Report
from lingvo_moe.evaluation.scores import check_pair
from lingvo_moe.tasks.evaluation import load_translator, translate_split
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.source_use import SourceUse, SplitBatches, evaluate_batches

MAKER = "lingvo-moe-evaluate"


def evaluate(
    model_dir: ModelDir,
    dataset: Dataset,
    output: Path,
    make_runtime,
    report: Callable[[str], None],
    *,
    split: str = "test",
    pairs: Sequence[str] = (),
    step: int | None = None,
    baselines: Path | None = None,
    bleu_tokenizers: Sequence[str] = (),
    overwrite: bool = False,
) -> Report:
    """Translates a split, scores it, and writes a report, which appears when it is complete.

    All arguments are checked before the translation starts.

    Args:
        model_dir: the model.
        dataset: prepared data.
        output: the directory of the report; see evaluation.evaluate for its files.
        make_runtime: task -> runtime.
        report: takes lines of progress.
        split: "dev" or "test".
        pairs: to score; () for all pairs of the model.
        step: of the checkpoint; None for the best on dev.
        baselines: a report to compare with: its directory or its JSON.
        bleu_tokenizers: texts PAIR=NAME; see evaluation.tokenizers.
        overwrite: whether an earlier report may be replaced.

    Raises:
        ValueError, OSError: an unknown or repeated pair, no test lines, baselines that do not
            compare, or an output that cannot be made.
    """
    check_output(output, MAKER, overwrite)
    model_dir.check_dataset(dataset)
    references = _references(dataset, split, pairs or model_dir.pairs, report)
    chosen = tokenizers.choose(list(references), bleu_tokenizers)
    against = Baselines.load(baselines, split, list(references)) if baselines else None
    if against:
        against.check_not_in(output)
        against.check(references, chosen)
    task = model_dir.task
    for name in references:  # a model that routes by task must know it
        task.task_id(dataset.pair(name).source, dataset.pair(name).target)
    runtime = make_runtime(task)
    translator, step = load_translator(model_dir, runtime, step)
    outputs = translate_split([(name, translator) for name in references], dataset, split, report)
    use = _source_use(model_dir, runtime, dataset, split, tuple(references), report)
    outputs = [dataclasses.replace(one, source_use=use.get(one.pair)) for one in outputs]
    with new_directory(output, MAKER, overwrite) as directory:
        return write_report(
            outputs,
            directory,
            model=model_dir.model,
            checkpoint_step=step,
            split=split,
            baselines=against,
            chosen_tokenizers=chosen,
        )


def _source_use(model_dir, runtime, dataset, split, pairs, report) -> Mapping[str, float]:
    """Pair -> its source use, for those with at least two lines that fit a row of training."""
    params = model_dir.params
    batches = SplitBatches.of(
        dataset,
        dataclasses.replace(params.input, pairs=pairs),
        params.train.source_use_sentences,
        split,
    )
    sampled, foreign = (evaluate_batches(runtime, b) for b in (batches.sampled, batches.foreign))
    if not sampled:
        return {}
    use = SourceUse.of(sampled, foreign, model_dir.pairs)
    for line in use.warnings():
        report(line)
    return use.pairs


def _references(dataset, split, pairs, report) -> dict[str, list[str]]:
    """Pair -> its target texts, for the pairs that have lines in the split."""
    if repeated := sorted({name for name in pairs if pairs.count(name) > 1}):
        raise ValueError(f"--pairs must name a pair once; repeated: {', '.join(repeated)}.")
    known = [dataset.pair(name) for name in pairs]
    for pair in known:
        check_pair(pair.name)
        if not pair.examples.get(split):
            report(f"{pair.name}: no {split} lines, passed over")
    found = {
        pair.name: [example.target_text for example in dataset.examples(split, pair.name)]
        for pair in known
        if pair.examples.get(split)
    }
    if not found:
        raise ValueError(f"No pair has {split} lines; nothing to evaluate.")
    return found
