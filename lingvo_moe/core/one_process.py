"""Objects that hold a compiled model and work only in the process that loaded it."""

import os
from pathlib import Path
from typing import NoReturn


class OneProcess:
    """A loaded model. TensorFlow's threads do not exist in a fork, where a call would never end."""

    def __init__(self, path: str | Path):
        """Remembers the process.

        Args:
            path: what the model was loaded from.
        """
        self._loaded_from, self._process = path, os.getpid()

    def check_process(self) -> None:
        """Checks that this is the process that loaded the model.

        Raises:
            RuntimeError: it is a fork of it.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                f"This process is a fork of the one that has the model. {self._how_to_share}"
            )

    def __reduce__(self) -> NoReturn:
        """Copying and pickling are errors."""
        raise TypeError(f"A loaded model cannot be copied or pickled. {self._how_to_share}")

    @property
    def _how_to_share(self):
        return (
            f"Load it in each process, lingvo_moe.load({str(self._loaded_from)!r}), and start "
            f'processes with multiprocessing.get_context("spawn").'
        )
