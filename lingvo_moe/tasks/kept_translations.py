"""Translations of an evaluation, kept in OUTPUT.parts until its report is complete.

An evaluation that fails or is killed leaves them there, for example if a metric cannot be computed.
The same command goes on from them.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lingvo_moe.core import lock
from lingvo_moe.core.files import MANIFEST, read_json, remove_partials, write_whole
from lingvo_moe.core.pieces import begin

_CURE = "Give the same model, data and options to go on, or pass --overwrite to start again."
_SUFFIX = ".translations.json"


@contextlib.contextmanager
def keep_translations(
    output: Path, job: Mapping[str, str], overwrite: bool, report: Callable[[str], None]
) -> Iterator[Path]:
    """The directory OUTPUT.parts, which is removed when the block ends without an error.

    Args:
        output: of the evaluation.
        job: see `pieces.begin`.
        overwrite: whether to remove the translations of another job.
        report: takes a line if translations were kept, and if they are kept after an error.

    Raises:
        ValueError: the directory belongs to another job, or holds other files.
        HeldError: another process has the same output.
    """
    directory = output.with_name(f"{output.name}.parts")
    with lock.hold(directory):
        begun = read_json(directory / MANIFEST) if (directory / MANIFEST).exists() else job
        if overwrite and begun.get("maker") == job["maker"] and begun != job:
            _remove(directory)
        begin(directory, job, _CURE)
        if any(directory.glob(f"*{_SUFFIX}")):
            report(f"going on from the translations in {directory}")
        try:
            yield directory
        except BaseException:
            if any(directory.glob(f"*{_SUFFIX}")):
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


def _remove(directory):
    for path in (*directory.glob(f"*{_SUFFIX}"), directory / MANIFEST):
        remove_partials(path)
        path.unlink(missing_ok=True)
