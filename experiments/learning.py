"""The experiments of docs/results.md: a queue of training runs, and tables of the results.

python -m experiments.learning OUTPUT --corpora=DIR [--only=TEXT …]     # makes the runs here
python -m experiments.learning OUTPUT --corpora=DIR --export            # or exports them, and
python -m experiments.learning_run OUTPUT                               # makes them on a GPU
python -m experiments.learning OUTPUT --results=experiments/results     # writes the tables

DIR has a directory for each corpus of learning_data.py. A run is a row of a study with one seed. It
trains as `lingvo-moe-train --model=MODEL --set=…` does. Its results are one JSON file in
OUTPUT/runs; the same command again makes only the missing ones. Rows are compared by dev loss and
dev BLEU; nothing is chosen on test.
"""

import argparse
import dataclasses
import hashlib
import json
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import lingvo_moe.tools  # noqa: F401  (TensorFlow logs less when it starts)
from experiments.learning_data import prepared
from experiments.learning_rows import ROWS, Row
from experiments.learning_run import SEARCH_LENGTH, SEARCH_ROWS, is_made, make
from experiments.learning_tables import write_tables
from lingvo_moe.config.params import override, to_fields
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.decoding.request import Request
from lingvo_moe.jobs.training import train_step
from lingvo_moe.nn.layer import EVALUATION
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.runtimes.local import Local
from lingvo_moe.runtimes.lowering import ArraySpec
from lingvo_moe.serving import stablehlo
from lingvo_moe.serving.stablehlo import Program
from lingvo_moe.system.files import write_whole
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.translation import TranslationTask

_METRICS = ("nll", "tokens", "pair_nll", "pair_tokens")


def main() -> None:
    """Makes or exports the runs, or writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--corpora", type=Path, help="directory that contains tldr and wikimessages"
    )
    parser.add_argument(
        "--export", action="store_true", help="export the runs, for a machine without TensorFlow"
    )
    parser.add_argument(
        "--platform", default="cuda", choices=stablehlo.PLATFORMS, help="its platform"
    )
    parser.add_argument("--only", action="append", help="only rows whose name has this text")
    parser.add_argument("--results", type=Path, help="directory for the tables as CSV files")
    args = parser.parse_args()
    if not args.corpora:
        write_tables(args.output, args.results)
        return
    rows = [r for r in ROWS if not args.only or any(text in r.name for text in args.only)]
    queue, failed = Queue(args.output, args.corpora), []
    queue.write(rows)
    for row in rows:
        try:
            if row.peer:
                print(f"{row.name}: run learning_run.py, with PyTorch and transformers")
            elif args.export:
                queue.export(row, args.platform)
            else:
                queue.make(row)
        except Exception:  # the other rows go on
            traceback.print_exc()
            failed.append(row.name)
    if failed:
        raise SystemExit(f"{len(failed)} rows failed, their errors are above: {', '.join(failed)}.")


class Queue:
    """The descriptions, programs and data of runs, in the directory `output`."""

    def __init__(self, output: Path, corpora: Path):
        """See main."""
        self._output, self._corpora = output, corpora

    def write(self, rows: Sequence[Row]) -> None:
        """Writes the descriptions of the runs, for learning_run.py."""
        names = []
        for row in rows:
            for run in self._runs(row):
                path = self._output / "queued" / f"{run['name']}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, json.dumps(run, indent=1))
                names.append(run["name"])
        write_whole(self._output / "queue.json", json.dumps(names, indent=1))

    def make(self, row: Row) -> None:
        """Makes the missing runs of a row on this machine."""
        runs = [run for run in self._runs(row) if not is_made(self._output, run)]
        if runs:
            engine = LocalEngine(self._task(row), row)
            for run in runs:
                make(self._output, run, engine)

    def export(self, row: Row, platform: str) -> None:
        """Writes the programs of a row."""
        task, directory = stablehlo.static(self._task(row)), self._directory(row)
        programs = {
            "initialize": stablehlo.initialize_program,
            "train": stablehlo.train_program,
            "evaluate": _evaluate_program,
        }
        searches = {f"search_{name}": _search_program for name in row.searches}
        for name, program in (programs | searches).items():
            path = directory / f"{name}.stablehlo"
            if not path.exists():
                directory.mkdir(parents=True, exist_ok=True)
                of = _searching(task, row, name.removeprefix("search_"))
                path.write_bytes(stablehlo.lower(program(of), [platform]).serialize())
        print(f"{row.name}: exported", flush=True)

    def _dataset(self, name: str) -> Dataset:
        return prepared(self._output / "data" / name, self._corpora, name)

    def _task(self, row: Row) -> TranslationTask:
        dataset = self._dataset(row.data)
        pairs = tuple(pair.name for pair in dataset.pairs)
        return TranslationTask(row.params, pairs, dataset.target_vocabulary.size)

    def _directory(self, row: Row) -> Path:
        """The directory of the programs; rows that differ only in their data share it."""
        task = self._task(row)
        inputs = task.params.input
        shape = InputParams(
            batch_size=inputs.batch_size,
            source_length=inputs.source_length,
            target_length=inputs.target_length,
        )
        fields = to_fields(dataclasses.replace(task.params, input=shape))
        told = json.dumps([fields, len(task.pairs), task.num_pieces, dict(row.searches)])
        return self._output / "programs" / hashlib.sha256(told.encode()).hexdigest()[:12]

    def _runs(self, row: Row) -> Iterator[dict[str, Any]]:
        """The descriptions of a row's runs."""
        params, dataset = row.params, self._dataset(row.data)
        for seed in row.seeds:
            yield {
                "name": f"{row.name}.{seed}",
                "row": row.name,
                "command": row.command,
                "params": to_fields(params),
                "data": row.data,
                "num_pairs": len(dataset.pairs),
                "seed": seed,
                "input": to_fields(params.input),
                "sizes": _sizes(params),
                "steps": params.train.max_steps,
                "eval_every": params.train.eval_every,
                "patience": params.train.patience,
                "until_source_use": row.until_source_use,
                "program": self._directory(row).name,
                "peer": row.peer and to_fields(row.peer),
                "searches": list(row.searches),
                "splits": list(row.splits),
            }


def _sizes(params: TranslationParams) -> dict[str, Any]:
    """What a peer needs to build a model of the same size."""
    names = (
        *("model_dim", "num_encoder_layers", "num_decoder_layers", "num_heads", "hidden_dim"),
        "dropout_rate",
    )
    sizes = {name: getattr(params.model, name) for name in names}
    return sizes | {"vocab_size": params.target_vocab_size}


def _searching(task: TranslationTask, row: Row, search: str) -> TranslationTask:
    """The task with the decoding of this search of the row; unchanged for another name."""
    changed = override(task.params, row.searches.get(search, ()))
    return dataclasses.replace(task, params=changed)


class LocalEngine:
    """TensorFlow on this machine; see learning_run.Engine."""

    def __init__(self, task: TranslationTask, row: Row):
        """Compiles nothing yet."""
        self._runtime = Local(task, train_step(task))
        self._requests = {
            name: Request(_searching(task, row, name).params.decoding) for name in row.searches
        }
        self.about = {"device": "cpu", "tensorflow": version("tensorflow")}

    def initialize(self, seed):
        """See Engine."""
        self._runtime.initialize(seed)

    def train(self, batches):
        """See Engine."""
        return sum(float(self._runtime.train(batch).tokens) for batch in batches)

    def evaluate(self, batch):
        """See Engine."""
        metrics = self._runtime.evaluate(batch)
        return NestedMap({n: metrics[n].numpy() for n in _METRICS})

    def state(self):
        """See Engine."""
        return {name: tensor.numpy() for name, tensor in self._runtime.state().items()}

    def restore(self, state):
        """See Engine."""
        self._runtime.restore(state)

    def search(self, name, ids, lengths):
        """See Engine."""
        found = self._runtime.translate(ids, lengths, request=self._requests[name])
        best, ends = found.ids.numpy()[:, 0], found.lengths.numpy()[:, 0]
        return [row[:end].tolist() for row, end in zip(best, ends, strict=True)]


def _evaluate_program(task: TranslationTask) -> Program:
    """(state, batch) -> the metrics of a batch."""
    state, batch = stablehlo.train_program(task).arguments

    def run(flat, batch):
        theta = _averaged(task, flat)
        metrics = task.loss(theta, batch, task.num_targets(batch), EVALUATION).metrics
        return {name: metrics[name] for name in _METRICS}

    return Program(run, (state, batch))


def _search_program(task: TranslationTask) -> Program:
    """(state, batch) -> ids and lengths of the best translations."""
    state = stablehlo.train_program(task).arguments[0]
    request = Request(task.params.decoding)
    batch = {
        "source_ids": ArraySpec((SEARCH_ROWS, SEARCH_LENGTH), np.dtype(np.int32), "BT"),
        "lengths": ArraySpec((SEARCH_ROWS,), np.dtype(np.int32), "B"),
    }

    def run(flat, batch):
        theta = _averaged(task, flat)
        found = task.translate(theta, batch.source_ids, batch.lengths, None, request)
        return {"ids": found.ids, "lengths": found.lengths}

    return Program(run, (state, batch))


def _averaged(task, flat):
    """The moving average of the weights, if there is one."""
    tree = NestedMap.unflatten(flat)
    slots = tree.get("slots", NestedMap())
    return task.params.optimizer.averaged(tree.theta, slots, task.weights())


if __name__ == "__main__":
    main()
