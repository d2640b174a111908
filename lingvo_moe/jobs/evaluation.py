"""Evaluates a trained model on a split: checks everything, translates, writes the report."""

import dataclasses
import datetime
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from lingvo_moe.config.fields import Params
from lingvo_moe.config.params import to_text
from lingvo_moe.data.dataset import SIDES, Dataset
from lingvo_moe.data.lengths import UNIT, amount
from lingvo_moe.data.mixture import identity
from lingvo_moe.data.pipeline import eval_batches
from lingvo_moe.evaluation import tokenizers
from lingvo_moe.evaluation.evaluate import Baselines, write_report
from lingvo_moe.evaluation.language_id import LanguageIdentifier
from lingvo_moe.evaluation.metrics.base import Metric, prepare_metrics
from lingvo_moe.evaluation.report import Report
from lingvo_moe.evaluation.report_columns import length_warnings
from lingvo_moe.evaluation.routing import RoutingRecord
from lingvo_moe.evaluation.scores import PairOutput
from lingvo_moe.inference.fit import fit_penalties
from lingvo_moe.inference.pivot import Translate, directions, through
from lingvo_moe.inference.translator import Translator
from lingvo_moe.jobs.floor import nearest_targets, train_texts
from lingvo_moe.jobs.source_use import SourceUse, SplitBatches, evaluate_batches
from lingvo_moe.system.files import check_output, new_directory
from lingvo_moe.system.lines import first_of
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import RuntimeFn

MAKER = "lingvo-moe-evaluate"
_WITH_TEXT = "dev", "test"
_SENTENCES = 1000  # of a language, for the language identifier


def evaluate(
    model_dir: ModelDir,
    dataset: Dataset,
    output: Path,
    make_runtime: RuntimeFn,
    report: Callable[[str], None],
    *,
    split: str = "test",
    pairs: Sequence[str] = (),
    step: int | None = None,
    baselines: Sequence[Path] = (),
    bleu_tokenizers: Sequence[str] = (),
    pivot: str | None = None,
    floor: bool = False,
    metrics: Sequence[str | Metric] = (),
    overwrite: bool = False,
) -> Report:
    """Translates a split, scores it, and writes a report, which appears when it is complete.

    All arguments are checked before the translation starts.

    Args:
        model_dir: the model.
        dataset: prepared data.
        output: the directory of the report; see evaluation.evaluate for its files.
        make_runtime: makes the runtime.
        report: takes lines of progress.
        split: "dev" or "test".
        pairs: to score; () for all pairs of the model.
        step: of the checkpoint; None for the best on dev.
        baselines: directories of reports to compare with; a pair is compared with the first that
            has it.
        bleu_tokenizers: texts PAIR=NAME; see evaluation.tokenizers.
        pivot: pairs that the model was not trained on are translated through this language; see
            `directions`. None to translate them directly.
        floor: whether to report the BLEU of the targets of the most similar training sentences.
        metrics: further scores; see evaluation.metrics.
        overwrite: whether an earlier report may be replaced.

    Raises:
        ValueError, OSError: an unknown pair, no test lines, a task that the router
            ByTask was not trained on, baselines that are not comparable, a metric that cannot be
            used, or an output that cannot be made, or that another process made meanwhile.
    """
    check_output(output, MAKER, overwrite)
    ready = prepare_metrics(metrics)
    here = {pair.name for pair in dataset.pairs}
    # A fit for some languages only is not written; the pairs of imported models are not known.
    whole = bool(model_dir.pairs) and set(model_dir.scored_pairs) <= here
    model_dir, dataset = model_dir.for_test_set(dataset)
    pairs = list(pairs)
    both = [name for name in model_dir.scored_pairs if name in here]
    references = references_of(dataset, split, pairs or both, report)
    if pivot is not None:
        model_dir.tag(pivot)
    task, trained_on = model_dir.task, count_trained_on(model_dir, dataset, report)
    pivots = {name: pivot if trained_on[name] == 0 else None for name in references}
    for name in _without_experts(task, dataset, pivots, bool(pairs)):
        report(f"{name}: the model has no experts for it, skipped")
        del references[name], pivots[name]
    chosen = tokenizers.choose(list(references), bleu_tokenizers)
    against = Baselines.load(baselines, split, list(references)) if baselines else None
    if against:
        against.check(references, output)
    runtime = make_runtime(task, None)
    translator, step = load_translator(model_dir, runtime, step)
    translator = fit_penalties(model_dir, translator, dataset, step, report, writes=whole)
    translate = _with_known_sources(translator, model_dir)
    translators = [(name, through(translate, via)) for name, via in pivots.items()]
    outputs = translate_split(translators, dataset, split, report)
    use = _source_use(model_dir, runtime, dataset, split, tuple(references), report)
    identify = language_identifier(dataset)
    outputs = [
        dataclasses.replace(
            one,
            train_examples=trained_on[one.pair],
            nearest=nearest_targets(dataset, split, one.pair) if floor else None,
            measures=_measures(one, dataset, model_dir, use, identify),
        )
        for one in outputs
    ]
    with new_directory(output, MAKER, overwrite) as directory:
        made = write_report(
            outputs,
            directory,
            model=model_dir.model,
            checkpoint_step=step,
            split=split,
            baselines=against,
            pivot=pivot,
            chosen_tokenizers=chosen,
            metrics=ready,
            made_from=made_from(dataset, model_dir.params),
        )
    for line in length_warnings({one.pair: one.measures["length_ratio"] for one in made.pairs}):
        report(line)
    return made


def made_from(dataset: Dataset, params: Params | None = None) -> dict[str, str]:
    """What a reader of a report needs to make it again: name -> text.

    Args:
        dataset: the data.
        params: of the model; None if each pair has a model of its own.
    """
    return {
        "Date": datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        "Command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "Data": f"{dataset.directory}, SHA-256 {dataset.sha256}",
        **({"Params": to_text(params)} if params else {}),
    }


def references_of(
    dataset: Dataset, split: str, pairs: Sequence[str], report: Callable[[str], None]
) -> dict[str, list[str]]:
    """Pair -> its target texts, for the pairs that have lines in the split.

    Args:
        dataset: prepared data.
        split: "dev" or "test".
        pairs: names.
        report: takes a line for each pair without lines.

    Raises:
        ValueError: another split, an unknown pair, or no lines at all.
    """
    if split not in _WITH_TEXT:
        raise ValueError(
            f"split must be {' or '.join(map(repr, _WITH_TEXT))}, got {split!r}; of other splits a "
            f"dataset has no text."
        )
    found = {}
    for pair in map(dataset.pair, pairs):
        if pair.examples.get(split):
            examples = dataset.examples(split, pair.name)
            found[pair.name] = [example.target_text for example in examples]
        else:
            report(f"{pair.name}: no {split} lines, skipped")
    if not found:
        raise ValueError(
            f"No pair of {first_of(pairs)} has {split} lines; nothing to evaluate. Choose another "
            f"split or other pairs."
        )
    return found


def count_trained_on(
    model_dir: ModelDir, dataset: Dataset, report: Callable[[str], None]
) -> dict[str, int | None]:
    """Pair -> number of sentence pairs that a model was trained on, in the dataset and in corpora.

    If it was trained on other data, or a corpus is not there, the numbers are those of the dataset,
    but 0 for pairs that the model is known not to have been trained on. None: it was trained on the
    pair, or may have been (as an imported model), but not on lines that can be counted here.

    Args:
        model_dir: the model.
        dataset: prepared data.
        report: takes a line if the numbers are those of the dataset.
    """
    inputs, cause = model_dir.params.input, "the model was trained on other data"
    counts = {pair.name: pair.examples.get("train", 0) for pair in dataset.pairs}
    try:
        if identity(dataset, inputs.corpora) == model_dir.data:
            counts, cause = inputs.mixture(dataset).examples, ""
    except ValueError as error:
        cause = str(error)
    seen: Sequence[str] = model_dir.seen_pairs
    if cause:
        report(f"The column 'train' counts the training lines of {dataset.directory} only: {cause}")
        seen = seen or list(counts)  # of an imported model it is not known
        counts = {name: count for name, count in counts.items() if name in seen}
    return {
        pair.name: counts.get(pair.name) or (None if pair.name in seen else 0)
        for pair in dataset.pairs
    }


def _with_known_sources(translator: Translate, model_dir: ModelDir) -> Translate:
    """Omits the source language if the model neither knows nor needs it.

    The data may have zero-shot pairs from such a language, which the translator would refuse.
    """
    known, needed = model_dir.source_languages, model_dir.task.needs_source_language

    def translate(sentences, to, source_language, **options):
        source = source_language if needed or source_language in known else None
        return translator(sentences, to, source, **options)

    return translate


def _without_experts(task, dataset, pivots, named) -> list[str]:
    """The pairs with a step that needs a task which the router ByTask was not trained on.

    Args:
        task: the model's.
        dataset: prepared data.
        pivots: pair -> the pivot that it is translated through; None for none.
        named: whether the user named the pairs.

    Raises:
        ValueError: the user named such a pair, or all pairs are such pairs.
    """
    without = []
    for name, pivot in pivots.items():
        pair = dataset.pair(name)
        try:
            for source, target in directions(pair.source, pair.target, pivot):
                task.task_id(source, target)
        except ValueError as error:
            without.append(name)
            if named or len(without) == len(pivots):
                raise ValueError(f"Pair {name}: {error} Name others with --pairs.") from error
    return without


def translate_split(
    translators: Iterable[tuple[str, Translate]],
    dataset: Dataset,
    split: str,
    report: Callable[[str], None],
) -> list[PairOutput]:
    """Translates pairs of a split, each by its own translator; training examples are those of the
    dataset.

    Args:
        translators: (pair, its translator), in the order to work in.
        dataset: prepared data with raw text for that split.
        split: "dev" or "test".
        report: takes a line of progress a pair, and warnings of sentences that are too long.

    Raises:
        ValueError: unknown pair, or one whose task the model was not trained on.
    """
    outputs = []
    for name, translator in translators:
        pair, examples = dataset.pair(name), dataset.examples(split, name)
        sources = [example.source_text for example in examples]
        translations = translator(
            sources,
            pair.target,
            pair.source,
            warn=lambda line, name=name: report(f"{name}: {line}"),
        )
        outputs.append(
            PairOutput(
                pair=name,
                train_examples=pair.examples.get("train", 0),
                sources=sources,
                hypotheses=[best[0].text for best in translations],
                references=[example.target_text for example in examples],
            )
        )
        report(f"{name}: {len(sources)} lines translated")
    return outputs


def load_translator(
    model_dir: ModelDir, runtime, step: int | None = None
) -> tuple[Translator, int]:
    """Loads a logdir's checkpoint, by default its best, into a runtime.

    Returns:
        The translator and the checkpoint's step.
    """
    checkpoint = model_dir.read_checkpoint(step, lambda found: runtime.restore(found.tensors))
    fitted = model_dir.at_step(checkpoint.step)
    return Translator.of(fitted, runtime.translate), checkpoint.step


def language_identifier(dataset: Dataset) -> LanguageIdentifier | None:
    """Identifies the languages of a dataset, by at most _SENTENCES training sentences of each.

    None if fewer than two languages have training text.
    """
    texts: dict[str, list[str]] = {}
    for pair in dataset.pairs:
        examples = dataset.examples("train", pair.name, _SENTENCES)
        sources, targets = (train_texts(dataset, examples, side) for side in SIDES)
        for language, more in ((pair.source, sources), (pair.target, targets)):
            known = texts.setdefault(language, [])
            known += more[: _SENTENCES - len(known)]
    seen = {language: lines for language, lines in texts.items() if lines}
    return LanguageIdentifier(seen) if len(seen) > 1 else None


def record_routing(
    model_dir: ModelDir,
    dataset: Dataset,
    make_runtime: RuntimeFn,
    split: str = "dev",
) -> RoutingRecord:
    """Counts how many tokens of a split choose each expert of the checkpoint that is best on dev,
    for tables and for pruning.

    Args:
        model_dir: a model with experts.
        dataset: prepared data.
        make_runtime: makes the runtime.
        split: "dev" or "test".

    Raises:
        ValueError: the dataset does not fit the model, the split has no lines that fit
            input.source_length and target_length, or there is no checkpoint.
        OSError: the checkpoint is damaged.
    """
    model_dir, dataset = model_dir.for_test_set(dataset)
    runtime = make_runtime(model_dir.task, None)
    load_translator(model_dir, runtime)
    rows = model_dir.params.input
    there = [pair.name for pair in dataset.pairs if pair.name in (rows.pairs or [pair.name])]
    of_pairs = dataclasses.replace(rows, pairs=tuple(there))
    batches = list(eval_batches(dataset, split, of_pairs)) if there else []
    if not batches:
        raise ValueError(
            f"{dataset.directory} has no {split} lines that fit input.source_length="
            f"{rows.source_length} and input.target_length={rows.target_length}. Use another "
            f"dataset or split."
        )
    total = evaluate_batches(runtime, batches)
    return RoutingRecord.of_metrics(total, model_dir.task.moe_layers, model_dir.pairs)


def _measures(output, dataset, model_dir, use, identify) -> dict[str, float]:
    """What is known of a pair besides its texts; see `PairOutput.measures`.

    Args:
        output: its translations.
        dataset: prepared data.
        model_dir: the model.
        use: pair -> source use, nats per token.
        identify: tells the languages of the dataset apart; None if there are fewer than two.
    """
    found = {
        "source_use": use.get(output.pair),
        "left_out": _left_out(dataset, output.pair, model_dir),
    }
    target = output.pair.rpartition("-")[2]
    if identify and target in identify.languages:
        found["off_target"] = identify.off_target(output.hypotheses, target)
        found["references_off_target"] = identify.off_target(output.references, target)
    return {key: float(value) for key, value in found.items() if value is not None}


def _left_out(dataset, pair, model_dir):
    """The share of a pair's target tokens of train in lines longer than a row; None if unknown."""
    table = np.array(dataset.pair(pair).lengths.get("train", ()), np.int64)
    lengths = model_dir.params.input.source_length, model_dir.params.input.target_length
    is_exact = not any(length % UNIT for length in lengths)
    if not (table.size and is_exact) or dataset.sha256 != model_dir.data:
        return None
    fitting = amount(table, *lengths).target_tokens
    return 1 - fitting / int(table[:, -1].sum())


def _source_use(model_dir, runtime, dataset, split, pairs, report) -> Mapping[str, float]:
    """Pair -> its source use, for pairs with at least two lines that fit a training row."""
    params = model_dir.params
    batches = SplitBatches.of(
        dataset,
        dataclasses.replace(params.input, pairs=tuple(pairs)),
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
