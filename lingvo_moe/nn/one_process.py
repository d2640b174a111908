"""Objects that hold a compiled model and work only in the process that loaded it."""

import os
from pathlib import Path
from typing import Any, NoReturn

from lingvo_moe.nn.tensorflow_private import has_started

_SPAWN = 'start processes with multiprocessing.get_context("spawn").'
_forked = False  # while TensorFlow ran


def _after_fork():
    global _forked
    _forked = _forked or has_started()


os.register_at_fork(after_in_child=_after_fork)


def is_forked() -> bool:
    """Whether this process was forked from one that ran TensorFlow: here it would wait for ever."""
    return _forked


def check_not_forked() -> None:
    """Checks that TensorFlow can run in this process. Raises RuntimeError: see `is_forked`."""
    if _forked:
        raise RuntimeError(
            f"This process is a fork of one that ran TensorFlow, which cannot be forked; {_SPAWN}"
        )


class OneProcess:
    """A loaded model. TensorFlow's threads do not exist in a fork, where a call would never end."""

    def __init__(self, path: str | Path):
        """path: what the model is loaded from. Raises RuntimeError: see `is_forked`."""
        check_not_forked()
        self._loaded_from = path
        self._cure = f"Load it in each process, lingvo_moe.load({str(path)!r}), and {_SPAWN}"

    def check_process(self) -> None:
        """Raises RuntimeError: this process is a fork of the one that loaded the model."""
        if _forked:
            raise RuntimeError(
                f"This process is a fork of the one that has the model. {self._cure}"
            )

    def __reduce__(self) -> NoReturn:
        """Copying and pickling are errors."""
        raise TypeError(f"A loaded model cannot be copied or pickled. {self._cure}")


class NotLoaded:
    """A model in a process where TensorFlow cannot run; each use raises the error.

    Loading does not: a multiprocessing.Pool starts its processes again and again for ever if their
    initializer, which loads the model, raises an error.
    """

    def __getattr__(self, name: str) -> Any:
        """Raises the RuntimeError of `check_not_forked`."""
        check_not_forked()
