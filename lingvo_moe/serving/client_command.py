"""The command line of the clients of SavedModels: flags, batches, and what is printed.

Exports contain a copy of this file, so it imports only the standard library and other copied files.
"""

import argparse
import ast
import io
import itertools
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lingvo_moe.core.batching import batches
from lingvo_moe.core.lines import (
    ArrivingLines,
    blocks,
    cut_warning,
    decode_lines,
    paired,
    read_lines,
)
from lingvo_moe.core.literals import unquoted
from lingvo_moe.data.sentences import left_out, sentence_language, split_texts
from lingvo_moe.tasks.parts import parts_of, translate_parts, translations_of

_BLOCK = 4096  # lines that are read at a time, which bounds memory
_INT32 = range(-(1 << 31), 1 << 31)
_OF_SAMPLING = ("top_k", "top_p", "seed")
_NO_OPTIONS = (
    "This export takes no options but --n_best, because its model has decoding.rules. Use the "
    "logdir."
)


class Service(Protocol):
    """An exported model, in memory or on a server. Its results are lists, by name.

    Attributes:
        options: the options of a request, each with its value in the model; {} if it has none.
        part_pieces: texts are split into parts of at most so many tokens.
        pairs: the model's language pairs, such as "de-en".
        forms: target language -> Unicode's form of its translations.
        penalties: target language -> its length_penalty, if this option is -1.
    """

    options: Mapping[str, Any]
    part_pieces: int
    pairs: Sequence[str]
    forms: Mapping[str, str]
    penalties: Mapping[str, float]

    def sizes(self, sentences: Sequence[str]) -> list[int]:
        """The number of tokens of each sentence."""

    def target_sizes(self, translations: Sequence[str]) -> list[int]:
        """The number of tokens of each translation."""

    def translate(self, sentences: Sequence[str], options: Mapping[str, Any]) -> Mapping[str, list]:
        """The outputs of `ServedModel.translate`, or with options of `translate_with`."""

    def score(self, sentences: Sequence[str], translations: Sequence[str]) -> Mapping[str, list]:
        """The outputs of `ServedModel.score`."""


def parser(description: str) -> argparse.ArgumentParser:
    """The flags of each client, which is described by a line."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("sentences", nargs="*", help="by default the lines of standard input")
    made.add_argument("--to", default="en", help="target language (default: en)")
    made.add_argument("--source_language", help="for models that need it")
    made.add_argument("--n_best", type=_positive, help="translations of a sentence")
    made.add_argument("--scores", action="store_true", help="print scores too")
    made.add_argument("--tokens", action="store_true", help="print JSON with tokens")
    made.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    made.add_argument("--score", metavar="FILE", help="print log P of the translations in a file")
    batch = "tokens of a batch, with padding (default: 2048)"
    made.add_argument("--batch_tokens", dest="batch", type=_positive, default=2048, help=batch)
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
        sentences = ArrivingLines(sys.stdin.buffer, "standard input")
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
    given = {**service.options, **options}
    after_first = {**options, "target_prefix": ""} if given.get("target_prefix") else options
    # An export whose translations begin with a tag has no option target_prefix.
    tags, alpha = "target_prefix" not in given, given.get("length_penalty")
    if alpha is not None and alpha < 0:
        alpha = service.penalties[args.to]

    def count(texts):
        return service.sizes([given.get("source_prefix", "") + text for text in texts])

    def penalty(length):
        return length if alpha is None else ((5 + tags + length) / 6) ** alpha

    def translate(texts, later):
        output = service.translate(texts, after_first if later else options)
        made = len(output["translations"][0])
        if made < n_best:
            raise ValueError(f"--n_best={n_best}: this export makes {made}. Give fewer.")
        return parts_of(output, n_best, args.tokens)

    language = sentence_language(args.source_language, args.to, service.pairs)
    numbers, cut = itertools.count(1), {}
    for block in blocks(sentences, _BLOCK):
        split = split_texts(block, language, service.part_pieces, count)
        found = translate_parts(split, args.batch, translate)
        results = translations_of(block, args.to, service.forms, split, found, penalty, n_best)
        for parts, best, number in zip(split, results, numbers, strict=False):
            if tokens := left_out(parts, service.part_pieces):
                cut[number] = tokens
            for one in best:
                print(_line(one, args, n_best > 1), flush=True)
    if cut:
        print(cut_warning(cut), file=sys.stderr)


def _line(found, args, several):
    if args.tokens:
        return json.dumps(found.as_json(), ensure_ascii=False)
    return (f"{found.score:.4f}\t" if args.scores or several else "") + found.text


def _score(service, sentences, args):
    for name, given in (("set", args.set), ("scores", args.scores), ("n_best", args.n_best)):
        if given:
            raise ValueError(f"--score and --{name} cannot be combined; drop one of them.")
    if not service.options:
        raise ValueError(f"--score: {_NO_OPTIONS}")
    for block in blocks(paired(sentences, read_lines(Path(args.score)), args.score), _BLOCK):
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


def _rows(sizes, most, outputs_of):
    """The outputs of each sentence, by name; outputs_of takes the indices of a batch."""
    rows: list[dict[str, Any]] = [{}] * len(sizes)
    for batch in batches(sizes, most):
        output = outputs_of(batch)
        for place, i in enumerate(batch):
            rows[i] = {name: values[place] for name, values in output.items()}
    return rows
