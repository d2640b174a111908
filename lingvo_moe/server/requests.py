"""Parses and validates the JSON of requests."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import NoReturn

from starlette.exceptions import HTTPException

from lingvo_moe.config.fields import check_fields
from lingvo_moe.server.params import ServerParams
from lingvo_moe.system.lines import check_utf8

MALFORMED, TOO_LARGE, WRONG = 400, 413, 422

# Fields and their types; those that may be None are optional.
_COMMON = {"to": str, "model": str | None, "source_language": str | None}
_TRANSLATE = {"sentences": list[str], **_COMMON}
_SCORE = {"sources": list[str], "targets": list[str], "experts": bool | None, **_COMMON}


def read_translate(body: bytes, limits: ServerParams, options: Sequence[str]) -> SimpleNamespace:
    """Parses the body of /v1/translate.

    The result has the fields `sentences`, `to`, `model` and `source_language`, and `options`, those
    of the search by name, such as n_best.

    Args:
        body: the body.
        limits: the limits of a request.
        options: names of further fields, which the model checks; null means not given.

    Raises ValueError: it is not valid; HTTPException: it is too large, or not JSON. The message has
    one line.
    """
    asked = _object(body, (*_TRANSLATE, *options))
    fields = _checked(asked, _TRANSLATE)
    _check_texts(fields["sentences"], "sentence", limits)
    given = {name: asked[name] for name in options if asked.get(name) is not None}
    return SimpleNamespace(**fields, options=given)


def read_score(body: bytes, limits: ServerParams) -> SimpleNamespace:
    """Parses the body of /v1/score.

    The result has the fields `sources`, `targets`, `to`, `model`, `source_language` and `experts`,
    whether to show them. Raises ValueError, HTTPException: as `read_translate`.
    """
    fields = _checked(_object(body, _SCORE), _SCORE)
    sources, targets = fields["sources"], fields["targets"]
    if len(sources) != len(targets):
        raise ValueError(
            f"There are {len(sources):,} sources and {len(targets):,} targets; give one target for "
            f"each source."
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
    check_fields(value, {}, "The body")
    for name in value:
        if name not in known:
            raise ValueError(f"Unknown field {name!r:.60}. There are {', '.join(known)}.")
    return value


def _checked(value, hints):
    """The fields of an object by name, None where an optional one is absent."""
    fields = {name: value.get(name) for name in hints}
    check_fields(fields, hints, "The body")
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
            raise ValueError(f"There is a NUL character in {name} {number}; remove it.")
        check_utf8(text, f"{name} {number}")
