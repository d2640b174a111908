"""The number of steps that a run can take in some hours, measured with its own first batches."""

import contextlib
import time
from typing import Any

from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.pipeline import Part, TrainInput
from lingvo_moe.inference.fit import bounded, dev_sample, is_fitted, translate_and_fit
from lingvo_moe.inference.translator import Translator
from lingvo_moe.jobs.source_use import SplitBatches
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.recipe import ENOUGH, Chosen, first_steps
from lingvo_moe.training.meter import Meter
from lingvo_moe.training.process import Process

_WARM, _MEASURED = 2, 10  # steps
_EVALUATING = 0.25  # largest share of the time for evaluations
_TRANSLATED = 32  # lines of dev, if evaluations translate some


def steps_in(
    hours: float, model_dir: ModelDir, dataset: Dataset, runtime: Any, process: Process
) -> list[Chosen]:
    """Times steps and an evaluation on dev, with weights that are thrown away.

    Args:
        hours: of the steps and evaluations; compilation and the length penalty come on top.
        model_dir: of a new logdir.
        dataset: prepared data.
        runtime: its state is changed.
        process: this process; all take the smallest numbers.

    Returns train.max_steps, and recipe.evaluations if evaluations take long.
    """
    params = model_dir.params
    rows = runtime.batch_rows(params.input.batch_size)
    part = Part.of(rows, process.index, params.input.num_virtual_shards)
    source = TrainInput(dataset, params.input, params.train.seed, part)
    dev = SplitBatches.of(dataset, params.input, params.train.source_use_sentences)
    runtime.initialize(params.train.seed)

    def seconds(count):
        batches, meter = [source.next_batch() for _ in range(count)], Meter()

        @contextlib.contextmanager
        def compiling():
            start = time.monotonic()
            yield
            meter.compiled(time.monotonic() - start)

        for batch in batches:
            meter.add(runtime.train(batch, compiling))
        return meter.read()[1] / count

    def evaluation(batches):
        start = time.monotonic()
        for batch in batches:
            float(runtime.evaluate(batch).nll)
        return time.monotonic() - start

    def translation():
        """Seconds of an evaluation's translations, by a few of its lines."""
        count = params.train.dev_bleu_sentences
        every, some = (dev_sample(model_dir, dataset, n) for n in (count, min(count, _TRANSLATED)))
        if not some:
            return 0.0
        translator = bounded(Translator.of(model_dir, runtime.translate), dataset)
        for _ in range(2):  # the first time compiles
            start = time.monotonic()
            translate_and_fit(translator, some, is_fitted(model_dir, translator))
        lines, measured = (sum(len(texts[0]) for texts in x.values()) for x in (every, some))
        return (time.monotonic() - start) * lines / measured

    seconds(_WARM)
    step = seconds(_MEASURED)
    batches = [*dev.sampled, *dev.foreign, *dev.rest]
    evaluation(batches[:1])
    whole = evaluation(batches) + translation()
    given, wanted, fewer = 3600 * hours, params.recipe.evaluations, []
    # If eval_every follows from the steps, their number is free; else the number of evaluations.
    if any(one.path == "train.eval_every" for one in model_dir.chosen):
        count = process.minimum(min(wanted, max(1, int(_EVALUATING * given / whole))))
        if count < wanted:
            fewer.append(Chosen("recipe.evaluations", count, f"each takes {whole:.0f} s"))
        steps = (given - count * whole) / step
    else:
        steps = given / (step + whole / params.train.eval_every)
    number = process.minimum(max(1, int(steps)))
    why = f"{hours:g} hours, with {step:.2f} s a step and {whole:.0f} s an evaluation"
    first = first_steps(len(dataset.pairs))
    if number < ENOUGH * first:
        why += f"; about {first} steps are needed to use sources, {ENOUGH * first:,} to translate"
    return [Chosen("train.max_steps", number, why), *fewer]
