"""The command line of the clients of SavedModels: flags, batches, and what is printed.

Exports contain a copy of this file, so it imports only the standard library and other copied files.
"""

import argparse
import ast
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lingvo_moe.core.batching import batches
from lingvo_moe.core.lines import cut_warning, decode_lines, paired, read_lines
from lingvo_moe.core.literals import unquoted

_BLOCK = 4096  # lines that are read at a time, which bounds memory
_INT32 = range(-(1 << 31), 1 << 31)
_OF_SAMPLING = ("top_k", "top_p", "seed")
_NO_OPTIONS = (
    "This export takes no options but --n_best: its model has decoding.rules, or an earlier "
    "version of lingvo_moe made it. Use the logdir, or in the second case export it again."
)


class Service(Protocol):
    """An exported model, in memory or on a server. Its results are lists, by name.

    Attributes:
        options: the options of a request, each with its value in the model; {} if it has none.
    """

    options: Mapping[str, Any]

    def sizes(self, sentences: Sequence[str]) -> list[int]:
        """The length of each sentence, for batches."""

    def target_sizes(self, translations: Sequence[str]) -> list[int]:
        """The length of each translation, for batches."""

    def translate(self, sentences: Sequence[str], options: Mapping[str, Any]) -> Mapping[str, list]:
        """The outputs of `ServedModel.translate`, or with options of `translate_with`."""

    def score(self, sentences: Sequence[str], translations: Sequence[str]) -> Mapping[str, list]:
        """The outputs of `ServedModel.score`."""


def parser(description: str, unit: str, size: int) -> argparse.ArgumentParser:
    """The flags of each client.

    Args:
        description: a line.
        unit: of the size of a batch, such as "tokens".
        size: the default.
    """
    made = argparse.ArgumentParser(description=description)
    made.add_argument("sentences", nargs="*", help="by default the lines of standard input")
    made.add_argument("--to", default="en", help="target language (default: en)")
    made.add_argument("--source_language", help="for models that need it")
    made.add_argument("--n_best", type=_positive, help="translations of a sentence")
    made.add_argument("--scores", action="store_true", help="print scores too")
    made.add_argument("--tokens", action="store_true", help="print JSON with tokens")
    made.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    made.add_argument("--score", metavar="FILE", help="print log P of the translations in a file")
    batch = f"{unit} of a batch, with padding (default: {size})"
    made.add_argument(f"--batch_{unit}", dest="batch", type=_positive, default=size, help=batch)
    return made


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, got {number}")
    return number


def run(args: argparse.Namespace, service: Service) -> None:
    """Prints the translations of the sentences, or log P of given translations, in order.

    Args:
        args: of the `parser`.
        service: the model.

    Raises:
        ValueError: a line or an option is wrong.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    if args.sentences:
        sentences = decode_lines(map(os.fsencode, args.sentences), "the arguments")
    else:
        sentences = decode_lines(sys.stdin.buffer, "standard input")
    if args.score:
        _score(service, sentences, args)
    else:
        _translate(service, sentences, args)


def options_of(defaults: Mapping[str, Any], texts: Iterable[str]) -> dict[str, Any]:
    """The options of `--set` texts.

    Args:
        defaults: the value in the model of each option.
        texts: OPTION=VALUE.

    Raises:
        ValueError: the model has no such option, the value is of another type, or the option has no
            effect without a temperature.
    """
    options = {}
    for text in texts:
        name, _, value = text.removeprefix("decoding.").partition("=")
        if name not in defaults:
            names = f"This export has {', '.join(sorted(defaults))}." if defaults else _NO_OPTIONS
            raise ValueError(f"--set={text}: unknown option {name!r}. {names}")
        try:
            options[name] = _value(value, defaults[name])
        except (ValueError, TypeError, SyntaxError) as error:
            kind = _KINDS[type(defaults[name])]
            raise ValueError(f"--set={text}: {name} must be {kind}.") from error
    sampling = options.get("temperature", defaults.get("temperature"))
    for name in _OF_SAMPLING:
        if name in options and not sampling:
            raise ValueError(
                f"--set={name}={options[name]}: {name} needs temperature, because without it "
                f"nothing is sampled; give --set=temperature=1 too."
            )
    return options


_KINDS = {int: "an integer", float: "a number", list: "a list of texts, such as ['dog']"}


def _value(text, default):
    """The value of a text, of the type of the default; else an error without a message."""
    if isinstance(default, str):
        return unquoted(text)
    value = ast.literal_eval(text)
    if isinstance(default, list):
        fits = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    elif isinstance(default, float):
        fits = type(value) in (int, float)
    else:
        fits = type(value) is int and value in _INT32
    if not fits:
        raise ValueError
    return value


def _translate(service, sentences, args):
    texts = [f"n_best={args.n_best}"] if args.n_best and service.options else []
    options = options_of(service.options, [*args.set, *texts])
    n_best = options.get("n_best", args.n_best or 1)
    if args.tokens and not service.options:
        raise ValueError(f"--tokens: {_NO_OPTIONS}")
    if options or args.tokens:
        options["n_best"] = n_best
    numbers, left_out = itertools.count(1), {}
    for block in _blocks(sentences):
        rows = _rows(
            service.sizes(block),
            args.batch,
            lambda chosen, block=block: service.translate([block[i] for i in chosen], options),
        )
        for row in rows:
            found = len(row["translations"])
            if found < n_best and not service.options:
                raise ValueError(f"--n_best={n_best}: this export makes {found}. Give fewer.")
            for n in range(min(n_best, found)):
                print(_line(row, n, args, n_best > 1))
            number = next(numbers)
            if row["left_out"]:
                left_out[number] = row["left_out"]
    if left_out:
        print(cut_warning(left_out), file=sys.stderr)


def _line(row, n, args, several):
    text, score = row["translations"][n], row["scores"][n]
    if not args.tokens:
        return (f"{score:.4f}\t" if args.scores or several else "") + text
    pieces = [piece for piece in row["tokens"][n] if piece]
    found = {"text": text, "score": score if math.isfinite(score) else None}
    if pieces:
        values = zip(pieces, row["log_probs"][n], row["aligned"][n], strict=False)
        names = ("text", "log_prob", "source")
        found["tokens"] = [dict(zip(names, one, strict=True)) for one in values]
        found["source"] = [piece for piece in row["source"] if piece]
    return json.dumps(found, ensure_ascii=False)


def _score(service, sentences, args):
    for name, given in (("set", args.set), ("scores", args.scores), ("n_best", args.n_best)):
        if given:
            raise ValueError(f"--score and --{name} cannot be combined; drop one of them.")
    if not service.options:
        raise ValueError(f"--score: {_NO_OPTIONS}")
    for block in _blocks(paired(sentences, read_lines(Path(args.score)), args.score)):
        sides = [list(side) for side in zip(*block, strict=True)]
        sizes = map(max, service.sizes(sides[0]), service.target_sizes(sides[1]))
        rows = _rows(
            list(sizes),
            args.batch,
            lambda chosen, sides=sides: service.score(*([s[i] for i in chosen] for s in sides)),
        )
        for row, (_, text) in zip(rows, block, strict=True):
            print(_scored(row, text, args.tokens))


def _scored(row, text, tokens):
    pieces = [piece for piece in row["tokens"] if piece]
    log_probs = row["log_probs"][: len(pieces)]
    if not tokens:
        return f"{sum(log_probs):.4f}\t{text}"
    each = [{"text": t, "log_prob": p} for t, p in zip(pieces, log_probs, strict=True)]
    return json.dumps(
        {"text": text, "log_prob": sum(log_probs), "tokens": each}, ensure_ascii=False
    )


def _blocks(lines: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(lines)
    while block := list(itertools.islice(left, _BLOCK)):
        yield block


def _rows(sizes, most, outputs_of):
    """The outputs of each sentence, by name; outputs_of takes the indices of a batch."""
    rows: list[dict[str, Any]] = [{}] * len(sizes)
    for batch in batches(sizes, most):
        output = outputs_of(batch)
        for place, i in enumerate(batch):
            rows[i] = {name: values[place] for name, values in output.items()}
    return rows
