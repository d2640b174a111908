"""Runs an exported model with only JAX and NumPy (and sentencepiece, to translate text).

python run.py --steps=10               trains on batch.npz; loss and target tokens/s of each step
python run.py [--to=en] < sentences    translates, one sentence per line
"""

import argparse
import io
import json
import sys
import time
from pathlib import Path

from lingvo_moe.core.console import install
from lingvo_moe.core.lines import ArrivingLines, blocks, cut_warning, one_line
from lingvo_moe.data.sentences import left_out, sentence_language, split_texts, written
from lingvo_moe.tasks.languages import check_source_language, check_target_language

install((ImportError, OSError, ValueError))  # one-line errors, also during imports

import jax  # noqa: E402
import jax.export  # noqa: E402
import numpy as np  # noqa: E402

HERE = Path(__file__).resolve().parent
MANIFEST = json.loads((HERE / "manifest.json").read_text())


def program(name):
    """The function (state or weights, batch) -> results of that name, for jax.jit's compiler."""
    described = MANIFEST["programs"].get(name)
    if described is None:
        raise ValueError(
            f"There is no program {name!r} in this export; export it with programs=('{name}',)."
        )
    exported = jax.export.deserialize(bytearray((HERE / described["file"]).read_bytes()))
    return jax.jit(exported.call, donate_argnums=described["donated"])


def arrays(file, program_name, argument):
    """The arrays of a program's argument from a file, on the device."""
    with np.load(HERE / file) as held:
        wanted = MANIFEST["programs"][program_name]["arguments"][argument]
        return {name: jax.device_put(held[name]) for name in wanted}


def initial(program_name):
    """The first argument: read from the file, or drawn for an export without weights."""
    state = MANIFEST["state"]
    if "file" in state:
        averaged = program_name == "translate" and state.get("weights")
        return arrays(averaged or state["file"], program_name, 0)
    return program(state["program"])({"seed": np.int32(state["seed"])})


def number(kind, flag, name):
    """The number of a language or a task in the manifest."""
    known = MANIFEST[kind]
    if name not in known:
        raise ValueError(f"{flag} must be one of {', '.join(sorted(known))}; got {name!r}.")
    return known[name]


def train(steps):
    """Trains and prints each step."""
    step, state, batch = program("train"), initial("train"), arrays("batch.npz", "train", 1)
    step = step.lower(state, batch).compile()
    for _ in range(steps):
        start = time.perf_counter()
        state, metrics = step(state, batch)
        tokens, nll = float(metrics["tokens"]), float(metrics["nll"])  # waits for the device
        rate = tokens / (time.perf_counter() - start)
        print(f"step {state['step']}  loss {nll / tokens:.6f}  {rate:,.0f} tokens/s", flush=True)


def task_of(languages):
    """The number of the task that a router by task needs."""
    kind = MANIFEST["tasks_by"]
    name = "-".join(map(str, languages.values())) if kind == "pair" else languages[kind]
    return number("tasks", f"The task, by {kind},", name)


def translate(lines, languages):
    """Prints the best translation of each line; a batch has the size of the program.

    Args:
        lines: sentences.
        languages: "source" and "target" -> the name of the language.
    """
    import sentencepiece

    run = program("translate")  # raises an error if the export only trains
    check_source_language(languages["source"], MANIFEST["source_languages"])
    check_target_language(languages["target"], MANIFEST["tags"])
    theta, eos = initial("translate"), MANIFEST["eos"]
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{side}.model"))
        for side in ("source", "target")
    )
    shapes = MANIFEST["programs"]["translate"]["arguments"][1]
    flags = {"source": "--source_language", "target": "--to"}
    rows, length = shapes["source_ids"]["shape"]
    tags = [number("tags", flags[side], languages[side]) for side in MANIFEST["in_front"]]
    room = length - len(tags) - 1
    task = task_of(languages) if "tasks" in shapes else None
    to = languages["target"]
    language, cut, number = sentence_language(languages["source"], to, MANIFEST["pairs"]), {}, 1

    def count(texts):
        return list(map(len, source.encode(texts)))

    def found(texts):
        """The translations of parts."""
        for start in range(0, len(texts), rows):
            batch = {name: np.zeros(array["shape"], np.int32) for name, array in shapes.items()}
            batch["lengths"] += 1  # for rows without a sentence
            for row, pieces in enumerate(source.encode(texts[start : start + rows])):
                ids = [*tags, *pieces[:room], eos]
                batch["source_ids"][row, : len(ids)], batch["lengths"][row] = ids, len(ids)
            if "tasks" in batch:
                batch["tasks"] += task
            best = {name: np.asarray(value)[:, 0] for name, value in run(theta, batch).items()}
            for row in range(len(texts[start : start + rows])):
                ids = best["ids"][row, : best["lengths"][row]].tolist()
                yield one_line(target.decode([i for i in ids if i != eos]))

    for block in blocks(lines, 4096):
        split = split_texts(block, language, room, count)
        texts = found([part.text for parts in split for part in parts])
        for line, parts in zip(block, split, strict=True):
            if tokens := left_out(parts, room):
                cut[number] = tokens
            translations = [next(texts) for _ in parts]
            print(written(line, to, MANIFEST["forms"], parts, translations), flush=True)
            number += 1
    if cut:
        print(cut_warning(cut), file=sys.stderr)


def main():
    """Parses the command line and calls a function above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, help="train for this number of steps instead of translating"
    )
    parser.add_argument("--to", help="target language; the default is en")
    parser.add_argument("--source_language", help="source language, for models that need it")
    args = parser.parse_args()
    if args.steps is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        languages = {"source": args.source_language, "target": args.to or "en"}
        translate(ArrivingLines(sys.stdin.buffer, "standard input"), languages)
    elif args.steps < 1:
        parser.error(f"--steps must be >= 1, got {args.steps}")
    elif args.to or args.source_language:
        parser.error("--steps trains; leave out --to and --source_language, which are to translate")
    else:
        train(args.steps)


if __name__ == "__main__":
    main()
