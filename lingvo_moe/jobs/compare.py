"""Trains several settings over several seeds, and compares them in one table."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.config.params import override
from lingvo_moe.config.plugins import digest, imported
from lingvo_moe.config.registry import get_params
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.evaluation.report import REPORT_FILE, load_report
from lingvo_moe.jobs.evaluation import evaluate
from lingvo_moe.jobs.training import TrainingJob, train_model
from lingvo_moe.reporting.table import Table
from lingvo_moe.system.files import check_file_name, read_json, write_whole
from lingvo_moe.system.lock import hold
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.model_json import FILE as MODEL_FILE
from lingvo_moe.tasks.translation import RuntimeFn
from lingvo_moe.training.summaries import read_scalars

FILE = "compare.json"
_REPORT = "report"  # in the directory of a run, beside its logdir
# key of a result -> (column, number of digits)
COLUMNS = {
    "dev_loss": ("dev loss", 3),
    "difference": ("difference to the first row", 3),
    "bleu": ("BLEU", 1),
    "chrf": ("chrF++", 1),
    "chrf_low": ("chrF++, least text", 1),
    "chrf_high": ("chrF++, most text", 1),
    "drop_rate": ("drop rate %", 1),
    "max_vio": ("MaxVio", 2),
    "step_seconds": ("s/step", 3),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A row of the table.

    Attributes:
        name: of the row; it names a directory.
        model: a registered model.
        overrides: `--set` texts.
    """

    name: str
    model: str
    overrides: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """The setting that a text "NAME: MODEL; PARAM=VALUE; PARAM=VALUE" gives.

        Raises:
            ValueError: the text has another form.
        """
        name, _, rest = text.partition(":")
        model, *overrides = (part.strip() for part in rest.split(";"))
        if not name.strip() or not model:
            raise ValueError(
                f"A row is 'NAME: MODEL; PARAM=VALUE; …', such as 'top-1: tiny.MoE; "
                f"model.moe.gating=Switch()'; got {text!r}."
            )
        check_file_name(name.strip(), "a row", "top-1")
        return cls(name.strip(), model, tuple(one for one in overrides if one))


def compare(
    settings: Sequence[Setting],
    dataset: Dataset,
    output: Path,
    seeds: Sequence[int],
    overrides: Sequence[str],
    make_runtime: RuntimeFn,
    report: Callable[[str], None],
    *,
    split: str | None = "dev",
) -> list[dict[str, Any]]:
    """Makes the missing runs; the same call resumes.

    Each run is trained in OUTPUT/NAME/SEED and its translations are scored in
    OUTPUT/NAME/SEED/report. OUTPUT/compare.json is written after each run; its runs of other
    settings and seeds stay, and a run that it has with this split is not made again, even without
    its logdir. Processes with other settings or seeds may use the same output.

    Args:
        settings: the rows. The first seeds of all rows come before the second seeds.
        dataset: prepared data.
        output: the directory.
        seeds: values of train.seed.
        overrides: `--set` texts for all rows.
        make_runtime: makes the runtimes.
        report: takes lines of progress.
        split: to translate and score, "dev" or "test"; None for neither.

    Returns:
        All runs of compare.json; see `measure`.

    Raises:
        ValueError: two rows have one name, a row has runs with other params, runs have other data
            or scores of another split, plug-ins have changed since, or a row trains pairs without
            dev lines.
        ValueError, OSError, SystemExit: as `train_model` and `evaluate`.
    """
    runs = _known(output / FILE)
    if len({one.name for one in settings}) < len(settings):
        raise ValueError("Two rows have one name; give each a name of its own.")
    made = {one.name: _made_with(one, overrides, dataset) for one in settings}
    for known in runs.values():
        _check_same(known, made.get(known["row"], known | {"data": dataset.sha256}))
    missing = [
        (setting, seed)
        for seed in seeds
        for setting in settings
        if not _is_done(runs.get((setting.name, seed)), split)
    ]
    again = {(setting.name, seed) for setting, seed in missing}
    _check_split([run for key, run in runs.items() if key not in again], split)
    for setting in dict(missing):
        _check_dev(setting, overrides, dataset)
    for number, (setting, seed) in enumerate(missing, 1):
        logdir = output / setting.name / str(seed)
        texts = [*overrides, *setting.overrides, f"train.seed={seed}"]
        job = TrainingJob(
            model=setting.model,
            params=None,
            overrides=texts,
            dataset=dataset,
            logdir=logdir,
            make_runtime=make_runtime,
            report=_after(f"[{number}/{len(missing)}: {setting.name}, seed {seed}] ", report),
        )
        if (logdir / MODEL_FILE).exists():
            ModelDir.open(logdir, setting.model).check_made_with(texts, dataset)
        train_model(job)
        scores = logdir / _REPORT
        scored = (scores / REPORT_FILE).exists() and load_report(scores).split
        if split and scored != split:
            of = ModelDir.open(logdir), dataset, scores, make_runtime, job.report
            evaluate(*of, split=split, overwrite=True)
        run = {"row": setting.name, "seed": seed, **made[setting.name], **measure(logdir)}
        runs = add_runs(output / FILE, [run])
        if number < len(missing):
            report(f"\n{compare_table(list(runs.values())).to_text()}")
    return list(runs.values())


def add_runs(path: Path, runs: Iterable[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Adds runs to a file, which other processes may do too. They replace those of row and seed.

    Args:
        path: such as OUTPUT/compare.json.
        runs: with row, seed and what `compare` gives them.

    Returns:
        (row, seed) -> run: all runs of the file.

    Raises:
        OSError: it cannot be read or written.
    """
    with hold(path.parent, f"{path.name}.lock", wait=True):
        merged = _known(path) | {(run["row"], run["seed"]): run for run in runs}
        write_whole(path, json.dumps({"runs": list(merged.values())}, indent=1) + "\n")
    return merged


def _check_split(runs: Iterable[Mapping[str, Any]], split: str | None) -> None:
    """Checks that runs that are not made again have no scores of another split."""
    for run in runs:
        if split and run.get("split", split) != split:
            raise ValueError(
                f"The row {run['row']!r} has a run of seed {run['seed']} with scores of "
                f"{run['split']}, and this call makes scores of {split}. Give this row and seed "
                f"too, or --split={run['split']}."
            )


def _is_done(run: Mapping[str, Any] | None, split: str | None) -> bool:
    return run is not None and (split is None or run.get("split") == split)


def _made_with(setting: Setting, overrides: Sequence[str], dataset: Dataset) -> dict[str, Any]:
    """What the runs of a row have in common."""
    return {
        "data": dataset.sha256,
        "model": setting.model,
        "set": [*overrides, *setting.overrides],
        "plugins": {name: digest(name) for name in imported()},
    }


def _check_dev(setting: Setting, overrides: Sequence[str], dataset: Dataset) -> None:
    """Checks that the pairs that the row trains have dev lines."""
    chosen = override(get_params(setting.model), [*overrides, *setting.overrides]).input.pairs
    trained = [pair for pair in dataset.pairs if pair.name in (chosen or [pair.name])]
    if not any(pair.examples.get("dev") for pair in trained):
        raise ValueError(
            f"{dataset.directory} has no dev lines of the pairs of the row {setting.name!r}, by "
            f"which runs are compared; prepare some."
        )


def _check_same(run: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Checks that a finished run fits the runs of its row that this call makes."""
    keys = [key for key in ("data", "model", "set") if run.get(key) != now[key]]
    before, after = ({key: one.get(key) for key in keys} for one in (run, now))
    changed = [
        n for n, d in run.get("plugins", {}).items() if now.get("plugins", {}).get(n, d) != d
    ]
    if keys or changed:
        why = f"before {', '.join(changed)} changed" if changed else f"with {before}, not {after}"
        raise ValueError(
            f"The row {run['row']!r} has a run of seed {run['seed']} that was made {why}. Give the "
            f"row another name, or --output another directory."
        )


def _after(prefix: str, report: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: report(prefix + line)


def _known(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """(row, seed) -> run, of the file of earlier calls."""
    found = read_json(path)["runs"] if path.exists() else []
    return {(run["row"], run["seed"]): run for run in found}


def measure(logdir: Path) -> dict[str, Any]:
    """What a finished run measured.

    Returns:
        dev_loss: the lowest, nats a target token.
        curve: [step, dev loss] of each evaluation.
        target_tokens: number of target tokens trained on.
        step_seconds: median time of a step, without compiling and evaluations.
        drop_rate: percent of the choices of experts that found no room; None without experts.
        max_vio: the busiest expert's choices in a step, divided by the mean of the experts, minus
            1; None without experts. It and drop_rate are averaged over the layers and the last
            tenth of training.
        split, bleu, chrf: of the report, if there is one; the scores are means over its pairs.
        chrf_low, chrf_high: over the third of its pairs with the least training text, and the most.
        pairs: pair -> [train examples, BLEU, chrF++], if there is a report.
    """
    scalars = read_scalars(logdir / "events")
    losses = scalars["dev/loss"]
    tokens, rates = scalars["train/tokens"], scalars["train/steps_per_second"]
    late = 0.9 * max(tokens)

    def last_mean(name):
        values = [
            value
            for tag, points in scalars.items()
            if tag.startswith(f"train/{name}/")
            for step, value in points.items()
            if step >= late
        ]
        return statistics.mean(values) if values else None

    drop_rate = last_mean("drop_rate")
    found: dict[str, Any] = {
        "dev_loss": min(losses.values()),
        "curve": [[step, round(loss, 4)] for step, loss in sorted(losses.items())],
        "target_tokens": round(sum(tokens.values())),
        "step_seconds": 1 / statistics.median(rates.values()),
        "drop_rate": None if drop_rate is None else 100 * drop_rate,
        "max_vio": last_mean("max_vio"),
    }
    if (logdir / _REPORT).exists():
        scored = load_report(logdir / _REPORT)
        found["split"] = scored.split
        averages = scored.averages
        found["bleu"], found["chrf"] = averages["all"].bleu, averages["all"].chrf
        found["chrf_low"], found["chrf_high"] = averages["low"].chrf, averages["high"].chrf
        found["pairs"] = {
            one.pair: [one.train_examples, round(one.bleu, 2), round(one.chrf, 2)]
            for one in scored.pairs
        }
    return found


def compare_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each setting: means over its seeds, with the standard error after "±".

    The difference is the dev loss minus that of the first row, for seeds that both have.
    """
    first = {run["seed"]: run["dev_loss"] for run in runs if run["row"] == runs[0]["row"]}
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        compares = run["row"] != runs[0]["row"] and run["seed"] in first
        difference = run["dev_loss"] - first[run["seed"]] if compares else None
        rows.setdefault(run["row"], []).append({**run, "difference": difference})
    measured = {key for of in rows.values() for one in of for key in one if one[key] is not None}
    shown = [key for key in COLUMNS if key in measured]
    return Table(
        ["row", "seeds", *(COLUMNS[key][0] for key in shown)],
        [[name, str(len(of)), *_cells(of, shown)] for name, of in rows.items()],
    )


def _cells(runs, keys) -> Iterator[str]:
    for key in keys:
        values, digits = [r[key] for r in runs if r.get(key) is not None], COLUMNS[key][1]
        mean = f"{statistics.mean(values):.{digits}f}" if values else ""
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        yield mean if error is None else f"{mean} ± {error:.{digits}f}"
