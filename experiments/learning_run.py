"""Makes the runs of learning.py: training, dev loss, source use, translations, scores.

python -m experiments.learning_run OUTPUT [--workers=4] [--minutes=10] [--only=TEXT …]

This is for a machine with a GPU. It needs this repository, JAX, NumPy, sentencepiece and sacreBLEU,
but not TensorFlow; runs of a peer need PyTorch and transformers. `learning.py OUTPUT --export` has
written OUTPUT. A complete run has the file OUTPUT/runs/NAME.json, with its translations beside it;
the same command again makes the missing runs. After `--minutes`, unfinished runs are killed.
"""

import argparse
import functools
import gzip
import itertools
import json
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lingvo_moe.config.params import from_fields
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.packing import padded
from lingvo_moe.data.pipeline import InputParams, Prefetcher, TrainInput
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.evaluation.scores import PairOutput, score_pair
from lingvo_moe.jobs.source_use import SourceUse, SplitBatches, add_metrics, evaluate_batches
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.system.files import write_whole

_FIELDS = ("bleu", "chrf", "train_examples", "test_examples", "reliable")
State = dict[str, np.ndarray]
_AT_ONCE = 50  # training steps per call of a program
_LAST = 5  # evaluations whose weights are averaged
_SOURCE_USE_SENTENCES = 1000
SEARCH_ROWS, SEARCH_LENGTH = 512, 96  # a batch of sentences; longer ones are cut


class Engine(Protocol):
    """Trains, evaluates and translates with one model.

    Attributes:
        about: the device and the versions of packages, for the results.
    """

    about: dict[str, Any]

    def initialize(self, seed: int) -> None:
        """Draws the initial state."""

    def train(self, batches: Sequence[NestedMap]) -> float:
        """Takes a step with each batch; returns the number of target tokens."""

    def evaluate(self, batch: NestedMap) -> NestedMap:
        """nll, tokens, pair_nll and pair_tokens of a batch."""

    def state(self) -> State:
        """The weights and the optimizer's state by name, as copies."""

    def restore(self, state: State) -> None:
        """Sets the state."""

    def search(self, name: str, ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
        """The best translations of ids [B, L] with lengths [B], by the search of this name."""


def make(output: Path, run: Mapping[str, Any], engine: Engine) -> dict[str, Any]:
    """Makes one run and writes its results.

    Args:
        output: the directory of all runs.
        run: its description; see learning.py.
        engine: the engine of its model.

    Returns:
        The description with device, versions, source use and scores; "curve", (step, target
        tokens, dev loss, source use) of each evaluation; "dev_loss", the best of these;
        "dev_loss_of_mean", the dev loss with the mean of the weights of the last evaluations, None
        for an optimizer with a moving average.
    """
    dataset = Dataset.load(output / "data" / run["data"])
    params = from_fields(InputParams, run["input"], "the run")
    dev = SplitBatches.of(dataset, params, _SOURCE_USE_SENTENCES)
    said = _train(run, engine, TrainInput(dataset, params, run["seed"]), dev)
    said |= _by_pair(engine, [pair.name for pair in dataset.pairs], dev)
    scores = {}
    for search, split in itertools.product(run["searches"], run["splits"]):
        outputs = _translate(engine, search, dataset, params, split)
        scores[f"{search}.{split}"] = _scores(outputs)
        text = "\n".join(line for one in outputs for line in one.hypotheses)
        path = output / "runs" / f"{run['name']}.{search}.{split}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()))
    said = {**run, **engine.about, **said, "scores": scores}
    path = output / "runs" / f"{run['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(said, indent=1))
    return said


def _train(run, engine, source, dev):
    """Trains; leaves the best state in the engine. Returns results."""
    every, curve, bad, tokens, seconds = run["eval_every"], [], 0, 0.0, 0.0
    last: list[State] = []
    best: tuple[float, int, State] = (np.inf, 0, {})
    engine.initialize(run["seed"])
    with Prefetcher(source, 2 * _AT_ONCE) as batches:
        for step in range(every, run["steps"] + 1, every):
            for start in range(0, every, _AT_ONCE):
                few = [batches.next_batch() for _ in range(min(_AT_ONCE, every - start))]
                before = time.monotonic()
                tokens += engine.train(few)
                seconds += time.monotonic() - before
            (loss, use), state = _loss_and_use(engine, dev), engine.state()
            curve.append((step, tokens, loss, use))
            line = f"step {step}, dev loss {loss:.3f}, source use {use:.2f}"
            print(f"{run['name']}: {line}", flush=True)
            last = [*last, state][-_LAST:]
            bad = 0 if loss < best[0] else bad + 1
            best = min(best, (loss, step, state), key=lambda one: one[0])
            if bad == run["patience"] or use >= (run["until_source_use"] or np.inf):
                break
    said: dict[str, Any] = {"dev_loss_of_mean": None, "dev_loss": best[0], "best_step": best[1]}
    # With a moving average ("/ema") evaluations do not use the weights, so no mean is made of them.
    if not any(name.endswith("/ema") for name in state):
        means = {n: sum(s[n] for s in last) / np.float32(len(last)) for n in _weights(state)}
        engine.restore(best[2] | means)
        said["dev_loss_of_mean"] = _loss_and_use(engine, dev)[0]
    engine.restore(best[2])
    return said | {"curve": curve, "train_seconds": seconds}


def _weights(state):
    """The names of float weights."""
    return [n for n, x in state.items() if n.startswith("theta/") and x.dtype == np.float32]


def _loss_and_use(engine, dev):
    """The dev loss and the source use of all pairs together, nats per token."""
    sampled, foreign, rest = (evaluate_batches(engine, part) for part in dev)
    total = add_metrics([sampled, rest] if rest else [sampled])
    return float(total.nll / total.tokens), float((foreign.nll - sampled.nll) / sampled.tokens)


def _by_pair(engine, names, dev):
    """Source use and dev loss of each pair."""
    sampled, foreign, rest = (evaluate_batches(engine, part) for part in dev)
    if not sampled:
        return {}
    use, total = (
        SourceUse.of(sampled, foreign, names),
        add_metrics([sampled, rest] if rest else [sampled]),
    )
    losses = zip(names, total.pair_nll, total.pair_tokens, strict=True)
    return {
        "source_use": use.overall,
        "pair_source_use": use.pairs,
        "pair_dev_loss": {name: float(nll / count) for name, nll, count in losses if count},
    }


def _translate(engine, search, dataset, params, split) -> list[PairOutput]:
    """The translations of each pair that has lines in the split."""
    pairs = [dataset.pair(n) for n in params.pairs] or dataset.pairs
    examples = {
        p.name: list(dataset.examples(split, p.name)) for p in pairs if p.examples.get(split)
    }
    sources = [example.source.tolist() for of in examples.values() for example in of]
    found = iter(dataset.target_vocabulary.decode(_search(engine, search, sources)))
    return [
        PairOutput(
            pair=name,
            train_examples=dataset.pair(name).examples.get("train", 0),
            sources=[example.source_text for example in of],
            hypotheses=[next(found) for _ in of],
            references=[example.target_text for example in of],
        )
        for name, of in examples.items()
    ]


def _search(engine, search, sources) -> list[list[int]]:
    """The best translation of each sentence; a batch has sentences of similar length."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found: list[list[int]] = [[]] * len(sources)
    for start in range(0, len(order), SEARCH_ROWS):
        places = order[start : start + SEARCH_ROWS]
        ids, lengths = padded([_cut(sources[place]) for place in places])
        for place, best in zip(places, engine.search(search, ids, lengths), strict=True):
            found[place] = [i for i in best if i != EOS]
    return found


def _cut(ids):
    return ids if len(ids) <= SEARCH_LENGTH else [*ids[: SEARCH_LENGTH - 1], EOS]


def _scores(outputs: Iterable[PairOutput]) -> dict[str, Any]:
    """BLEU and chrF++ by pair, their means over reliable pairs, and BLEU of the others pooled."""
    scored = {one.pair: score_pair(one) for one in outputs}
    few = [one for one in outputs if not scored[one.pair].reliable]
    reliable = [score for score in scored.values() if score.reliable]
    means = {
        name: float(np.mean([getattr(s, name) for s in reliable]))
        for name in ("bleu", "chrf")
        if reliable
    }
    return means | {
        "pairs": {
            name: {field: getattr(s, field) for field in _FIELDS} for name, s in scored.items()
        },
        "pooled_bleu": _pooled_bleu(few) if few else None,
        "signature": next(iter(scored.values())).signature,
    }


def _pooled_bleu(outputs: Sequence[PairOutput]) -> float:
    """BLEU of the lines of all pairs together; they have the same target language."""
    lines: dict[str, Any] = {
        name: [line for output in outputs for line in getattr(output, name)]
        for name in ("sources", "hypotheses", "references")
    }
    pair = f"*-{outputs[0].pair.rpartition('-')[2]}"
    return score_pair(PairOutput(pair=pair, train_examples=None, **lines)).bleu


class ExportedEngine:
    """Runs the exported programs of a run with JAX."""

    def __init__(self, directory: Path):
        """Compiles nothing yet.

        Args:
            directory: the directory of the programs.
        """
        import jax

        self._directory = directory
        self._state: Any = {}
        self.about = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}

    def initialize(self, seed):
        """See Engine."""
        self._state = _program(self._directory / "initialize")({"seed": np.int32(seed)})

    def train(self, batches):
        """See Engine."""
        many = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
        self._state, tokens = _many_steps(self._directory / "train")(self._state, many)
        return float(tokens)  # waits for the device

    def evaluate(self, batch):
        """See Engine."""
        metrics = _program(self._directory / "evaluate")(self._state, dict(batch))
        return NestedMap({name: np.asarray(x, np.float64) for name, x in metrics.items()})

    def state(self):
        """See Engine."""
        return {name: np.asarray(x) for name, x in self._state.items()}

    def restore(self, state):
        """See Engine."""
        import jax

        self._state = {name: jax.device_put(x) for name, x in state.items()}

    def search(self, name, ids, lengths):
        """See Engine."""
        more = SEARCH_ROWS - len(ids)
        ids = np.pad(ids, [(0, more), (0, SEARCH_LENGTH - ids.shape[1])])
        batch = {"source_ids": ids, "lengths": np.pad(lengths, [(0, more)], constant_values=1)}
        found = _program(self._directory / f"search_{name}")(self._state, batch)
        best, ends = (np.asarray(found[of])[: len(ids) - more, 0] for of in ("ids", "lengths"))
        return [row[:end].tolist() for row, end in zip(best, ends, strict=True)]


@functools.cache
def _call(path: Path):
    import jax
    import jax.export

    jax.config.update("jax_compilation_cache_dir", str(path.parents[2] / "compiled"))
    return jax.export.deserialize(bytearray(path.with_suffix(".stablehlo").read_bytes())).call


@functools.cache
def _program(path: Path):
    import jax

    return jax.jit(_call(path))


@functools.cache
def _many_steps(path: Path):
    """(state, batches [N, …]) -> (the state after N steps, target tokens)."""
    import jax

    def one(state, batch):
        state, metrics = _call(path)(state, batch)
        return state, metrics["tokens"]

    def run(state, batches):
        state, tokens = jax.lax.scan(one, state, batches)
        return state, tokens.sum()

    return jax.jit(run, donate_argnums=0)


def main() -> None:
    """Makes the missing runs, several at a time, until the time limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=int, default=4, help="processes that share the device")
    parser.add_argument("--minutes", type=float, default=1e4, help="time limit")
    parser.add_argument("--only", action="append", help="only runs whose name has this text")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    context = multiprocessing.get_context("spawn")
    waiting = context.Queue()
    for name in [*missing(args.output, args.only), *[None] * args.workers]:
        waiting.put(name)
    workers = [
        context.Process(target=_work, args=(args.output, waiting), daemon=True)
        for _ in range(args.workers)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
        worker.kill()
    if left := missing(args.output, args.only):
        raise SystemExit(f"{len(left)} runs are missing: {', '.join(left)}.")


def missing(output: Path, only: Sequence[str] | None) -> list[str]:
    """The names of queued runs without results, in order; `only`: whose name has such a text."""
    queue = json.loads((output / "queue.json").read_text())
    names = [name for name in queue if not only or any(text in name for text in only)]
    return [name for name in names if not is_made(output, described(output, name))]


def is_made(output: Path, run: Mapping[str, Any]) -> bool:
    """Whether there are results of this run, made with the same description."""
    path = output / "runs" / f"{run['name']}.json"
    run = json.loads(json.dumps(run))  # tuples become lists, as in the file
    return path.exists() and json.loads(path.read_text()).items() >= run.items()


def described(output: Path, name: str) -> dict[str, Any]:
    """The description of a run."""
    return json.loads((output / "queued" / f"{name}.json").read_text())


def engine(output: Path, run: dict[str, Any]) -> Engine:
    """The engine of a run; it does not need TensorFlow."""
    if run["peer"]:
        from experiments.learning_peer import PeerEngine

        return PeerEngine(run)
    return ExportedEngine(output / "programs" / run["program"])


def _work(output: Path, waiting: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for name in iter(waiting.get, None):
        run, start = described(output, name), time.monotonic()
        try:
            said = make(output, run, engine(output, run))
        except Exception:  # the other runs go on
            traceback.print_exc()
            continue
        print(f"{name}: {said['dev_loss']:.3f}, {time.monotonic() - start:.0f} s", flush=True)


def _end_with_parent() -> None:
    """Ends this process when the one that started it ends, even if that was killed."""
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    main()
