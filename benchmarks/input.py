r"""Measures the speed, the packing and the memory of the training input.

python benchmarks/input.py --data=DATA                                # a prepared dataset
python benchmarks/input.py --data=/tmp/large --pairs=1000 --examples=10000000    # makes it first

Times are CPU times, so other processes hardly change them. Memory is the peak of a process.
"""

import resource
import time
from pathlib import Path

import numpy as np
from absl import app, flags

from lingvo_moe.config.params import override
from lingvo_moe.data.dataset import Dataset, Example, PairInfo
from lingvo_moe.data.pipeline import InputParams, Part, TrainInput
from lingvo_moe.data.records import write_records
from lingvo_moe.data.vocabulary import train_vocabulary

FLAGS = flags.FLAGS
_SHARD = 50_000


def main(argv: list[str]) -> None:
    """Prints one line for each measurement."""
    del argv
    directory = Path(FLAGS.data)
    if FLAGS.pairs and not directory.exists():
        generate(directory, FLAGS.pairs, FLAGS.examples)
    dataset = Dataset.load(directory)
    params = _params(dataset)
    measure(dataset, params)


def _params(dataset: Dataset) -> InputParams:
    """InputParams whose source and target lengths have the ratio of the drawn examples."""
    params = InputParams(batch_size=FLAGS.rows, source_length=256, target_length=256)
    inputs = TrainInput(dataset, params, seed=1)
    batches = [inputs.next_batch() for _ in range(50)]
    source, target = (
        sum(np.count_nonzero(batch[f"{side}_segment_ids"]) for batch in batches)
        for side in ("source", "target")
    )
    length = round(FLAGS.target_length * source / target)
    params = InputParams(
        batch_size=FLAGS.rows, source_length=length, target_length=FLAGS.target_length
    )
    return override(params, FLAGS.set)


def measure(dataset: Dataset, params: InputParams) -> None:
    """Prints the speed, the packing, the times of opening and resuming, and those of processes."""
    examples = sum(pair.examples.get("train", 0) for pair in dataset.pairs)
    print(f"{len(dataset.pairs)} pairs, {examples:,} examples, {params}")
    start = time.process_time()
    source = TrainInput(dataset, params, seed=1)
    source.next_batch()
    print(f"first batch: {time.process_time() - start:.2f} s")
    seconds, batches = _timed(source, FLAGS.batches)
    shares = [
        np.mean([batch[f"{side}_segment_ids"] > 0 for batch in batches])
        for side in ("source", "target")
    ]
    tokens = sum(np.count_nonzero(batch.target_segment_ids) for batch in batches)
    print(f"{tokens / seconds:,.0f} target tokens per second and core")
    print(f"tokens in {shares[0]:.1%} of source and {shares[1]:.1%} of target positions")
    state = source.state()
    print(f"state: {sum(value.nbytes for value in state.values()) / 1024:,.0f} KiB")
    start = time.process_time()
    resumed = TrainInput(Dataset.load(dataset.directory), params, seed=1)
    resumed.restore(state)
    resumed.next_batch()
    print(f"resuming, next batch included: {time.process_time() - start:.2f} s")
    for processes in (2, 4, 8):
        rows = np.repeat(np.eye(processes, dtype=bool), params.batch_size // processes, axis=1)
        part = Part.of(rows, 0, params.num_virtual_shards)
        one, whole = TrainInput(dataset, params, 1, part), TrainInput(dataset, params, 1)
        ratios = []
        for _ in range(5):
            ratios.append(_timed(one, FLAGS.batches // 5)[0] / _timed(whole, FLAGS.batches // 5)[0])
        print(f"one of {processes} processes: {np.median(ratios):.3f} of the time of one alone")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"memory: {peak / 2**10:,.0f} MiB")


def _timed(source: TrainInput, count: int):
    start = time.process_time()
    batches = [source.next_batch() for _ in range(count)]
    return time.process_time() - start, batches


def generate(directory: Path, pairs: int, examples: int) -> None:
    """Writes a dataset: sizes of pairs by a power law, sentences of random ids."""
    vocabulary = train_vocabulary({"en": ["the cat"]}, 300, tags=["en"])
    rng, size, digest = np.random.default_rng(0), vocabulary.size, vocabulary.sha256
    directory.mkdir(parents=True)
    for side in ("source", "target"):
        vocabulary.save(directory / f"{side}.model")
    weights = 1 / np.arange(1, pairs + 1)
    infos = []
    for index, weight in enumerate(weights / weights.sum()):
        name, count = f"x{index}-en", max(1, round(weight * examples))
        sizes = [min(_SHARD, count - begin) for begin in range(0, count, _SHARD)]
        shards = {f"train/{name}-{i:05d}.records": n for i, n in enumerate(sizes)}
        for shard, of_shard in shards.items():
            write_records(directory / shard, _sentences(rng, of_shard, size))
        infos.append(PairInfo(name, f"x{index}", "en", index, {"train": count}, {"train": shards}))
        print(f"{name}: {count:,}", flush=True)
    hashes = {"source": digest, "target": digest}
    checks = {pair.name: {"empty": 0} for pair in infos}
    Dataset(directory, tuple(infos), {"en": 4}, hashes, checks).save()


def _sentences(rng, count, size):
    """Examples of 25 tokens on average, with similar lengths of both sides."""
    lengths = 2 + np.minimum(rng.geometric(1 / 23, count), 120)
    others = np.maximum(2, np.minimum(lengths * rng.uniform(0.8, 1.25, count), 125).astype(int))
    for source, target in zip(lengths.tolist(), others.tolist(), strict=True):
        ids = rng.integers(5, size, source + target, dtype=np.int32)
        yield Example(ids[:source], ids[source:])


if __name__ == "__main__":
    flags.DEFINE_string("data", None, "A prepared dataset.", required=True)
    flags.DEFINE_integer(
        "pairs", 0, "Makes a dataset of this number of pairs in --data; 0 makes none."
    )
    flags.DEFINE_integer("examples", 10_000_000, "Number of examples of that dataset.")
    flags.DEFINE_integer("rows", 1024, "Rows of a batch.")
    flags.DEFINE_integer("target_length", 128, "Target tokens per row.")
    flags.DEFINE_multi_string("set", [], "Fields of InputParams, such as modifiers=(Merging(),)")
    flags.DEFINE_integer("batches", 20, "Number of batches to measure.")
    app.run(main)
