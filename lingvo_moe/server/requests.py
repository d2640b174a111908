"""Parses and validates the JSON of requests."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from starlette.exceptions import HTTPException

from lingvo_moe.config.fields import conforms
from lingvo_moe.server.params import ServerParams
from lingvo_moe.system.lines import check_utf8

MALFORMED, TOO_LARGE, WRONG = 400, 413, 422

_TEXT, _OPTIONAL_TEXT = (str, "a string"), (str | None, "a string")
_TEXTS = (tuple[str, ...], "a list of strings")
_COMMON: dict[str, Any] = {
    "to": _TEXT,
    "model": _OPTIONAL_TEXT,
    "source_language": _OPTIONAL_TEXT,
}
_TRANSLATE = {"sentences": _TEXTS, **_COMMON}
_SCORE = {
    "sources": _TEXTS,
    "targets": _TEXTS,
    "experts": (bool | None, "true or false"),
    **_COMMON,
}


def read_translate(body: bytes, limits: ServerParams, options: Sequence[str]) -> SimpleNamespace:
    """Parses the body of /v1/translate.

    The result has the fields `sentences`, `to`, `model` and `source_language`, and `options`, those
    of the search by name, such as n_best.

    Args:
        body: the body.
        limits: the limits of a request.
        options: names of further fields, which the model checks; null means not given.

    Raises HTTPException: it is not valid; the message has one line.
    """
    asked = _object(body, (*_TRANSLATE, *options))
    fields = _checked(asked, _TRANSLATE)
    _check_texts(fields["sentences"], "sentence", limits)
    given = {name: asked[name] for name in options if asked.get(name) is not None}
    return SimpleNamespace(**fields, options=given)


def read_score(body: bytes, limits: ServerParams) -> SimpleNamespace:
    """Parses the body of /v1/score.

    The result has the fields `sources`, `targets`, `to`, `model`, `source_language` and `experts`,
    whether to show them. Raises HTTPException: as `read_translate`.
    """
    fields = _checked(_object(body, _SCORE), _SCORE)
    sources, targets = fields["sources"], fields["targets"]
    if len(sources) != len(targets):
        refuse(
            WRONG,
            f"There are {len(sources):,} sources and {len(targets):,} targets; give one target for "
            f"each source.",
        )
    _check_texts(sources, "source", limits)
    _check_texts(targets, "target", limits)
    return SimpleNamespace(**fields)


def refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> NoReturn:
    """Raises the HTTPException of an error response with a one-line message."""
    raise HTTPException(status, message, headers)


def _object(body, known):
    """The JSON object in a body, whose fields are among the known ones."""
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        refuse(MALFORMED, f"The body is not JSON in UTF-8: {error}.")
    if not isinstance(value, dict):
        refuse(WRONG, f"The body must be a JSON object, got {value!r:.60}.")
    for name in value:
        if name not in known:
            refuse(WRONG, f"Unknown field {name!r:.60}. There are {', '.join(known)}.")
    return value


def _checked(value, hints):
    """The fields of an object by name, None where an optional one is absent."""
    fields = {name: value.get(name) for name in hints}
    for name, (hint, kind) in hints.items():
        given = fields[name]
        if isinstance(given, list):
            fields[name] = tuple(given)
        if not conforms(fields[name], hint):
            if name not in value:
                refuse(WRONG, f"Field {name!r} is missing; it is {kind}.")
            refuse(WRONG, f"Field {name!r} must be {kind}, got {json.dumps(value[name])[:60]}.")
    return fields


def _check_texts(texts, name, limits):
    """Refuses too many texts, and each that is too long or no Unicode text."""
    if len(texts) > limits.max_sentences:
        refuse(
            TOO_LARGE,
            f"A request may have {limits.max_sentences:,} sentences, but this one has "
            f"{len(texts):,}; send it in parts.",
        )
    for number, text in enumerate(texts, start=1):
        if len(text) > limits.max_characters:
            refuse(
                TOO_LARGE,
                f"A sentence may have {limits.max_characters:,} characters, {name} {number} has "
                f"{len(text):,}; split it.",
            )
        if "\0" in text:  # files cannot contain it
            refuse(WRONG, f"There is a NUL character in {name} {number}; remove it.")
        try:
            check_utf8(text, f"{name} {number}")
        except ValueError as error:
            refuse(WRONG, str(error))
