"""Translations of an evaluation, kept in OUTPUT.parts until its report is complete.

An evaluation that fails or is killed leaves them there, for example if a metric cannot be computed.
The same command goes on from them.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lingvo_moe.core import lock
from lingvo_moe.core.files import (
    MANIFEST,
    REPLACE,
    check_output,
    read_json,
    remove_partials,
    write_whole,
)
from lingvo_moe.core.pieces import begin

_CURE = f"Give the same model, data and options to go on, or {REPLACE} to start again."
_SUFFIX = ".translations.json"


def check_free(output: Path) -> None:
    """Checks, before any work, that no other evaluation has the same output.

    Raises:
        HeldError: another has.
    """
    directory = _directory(output)
    if directory.is_dir():
        with lock.hold(directory):
            pass


@contextlib.contextmanager
def keep_translations(
    output: Path, job: Mapping[str, str], overwrite: bool, report: Callable[[str], None]
) -> Iterator[Path]:
    """The directory OUTPUT.parts, which is removed when the block ends without an error.

    Args:
        output: of the evaluation.
        job: see `pieces.begin`.
        overwrite: whether an earlier report, and the translations of another job, may be removed.
        report: takes a line if translations were kept, and if they are kept after an error.

    Raises:
        ValueError: the directory belongs to another job, or holds other files; or another process
            has made the output since it was checked.
        HeldError: another process has the same output.
    """
    directory = _directory(output)
    with lock.hold(directory):
        check_output(output, job["maker"], overwrite)
        begun = read_json(directory / MANIFEST) if (directory / MANIFEST).exists() else job
        replaceable = overwrite or not _has_any(directory)
        if begun != job and begun.get("maker") == job["maker"] and replaceable:
            _remove(directory)
        begin(directory, job, _CURE)
        if _has_any(directory):
            report(f"going on from the translations in {directory}")
        try:
            yield directory
        except BaseException:
            if _has_any(directory):
                report(f"{directory} keeps the translations; the same command goes on from there.")
            else:
                _remove(directory)
            raise
        _remove(directory)
    with contextlib.suppress(OSError):  # the user has put files there
        directory.rmdir()


def translated_once(
    directory: Path, pair: str, translate: Callable[[], Sequence[str]]
) -> Sequence[str]:
    """The translations of a pair: those that are kept, or new ones, which are kept.

    Args:
        directory: of `keep_translations`.
        pair: its name.
        translate: returns the translations.
    """
    path = directory / f"{pair}{_SUFFIX}"
    if path.exists():
        return json.loads(path.read_text("utf-8"))
    translations = translate()
    remove_partials(path)
    write_whole(path, json.dumps(translations))
    return translations


def _directory(output):
    return output.with_name(f"{output.name}.parts")


def _has_any(directory):
    return any(directory.glob(f"*{_SUFFIX}"))


def _remove(directory):
    """Removes all that was written here, also what a kill left; files of the user stay."""
    for pattern in (f"*{_SUFFIX}", f".*{_SUFFIX}.partial-*", MANIFEST):
        for path in directory.glob(pattern):
            path.unlink()
    remove_partials(directory / MANIFEST)
