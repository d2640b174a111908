"""Scalars for TensorBoard: TFRecord files of Event protos."""

import collections
import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf


class SummaryWriter:
    """Appends to a new events file in a directory, which TensorBoard then shows."""

    def __init__(self, directory: Path | None):
        """Opens the file; makes the directory if it does not exist.

        Args:
            directory: None writes nothing.

        Raises OSError: the directory cannot be made.
        """
        self._writer: Any = None
        if directory is None:
            return
        directory.mkdir(parents=True, exist_ok=True)
        writer = f"{socket.gethostname()}.{os.getpid()}.{len(list(directory.iterdir()))}"
        path = directory / f"events.out.tfevents.{time.time():.0f}.{writer}"
        self._writer = tf.io.TFRecordWriter(str(path))
        self._write(file_version="brain.Event:2")

    def restart(self, step: int) -> None:
        """Makes TensorBoard drop the points of this step and later ones, which are repeated."""
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        self._write(step=step, session_log=start)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes values by tag ("train/loss") at a step and flushes."""
        value = tf.compat.v1.Summary.Value
        points = [value(tag=t, simple_value=float(v)) for t, v in values.items()]
        self._write(step=step, summary=tf.compat.v1.Summary(value=points))

    def close(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, **fields):
        if self._writer is not None:
            event = tf.compat.v1.Event(wall_time=time.time(), **fields)
            self._writer.write(event.SerializeToString())
            self._writer.flush()


def read_scalars(directory: Path) -> dict[str, dict[int, float]]:
    """Tag -> step -> value, of all events files in a directory; a later point replaces earlier."""
    points: dict[str, dict[int, float]] = collections.defaultdict(dict)
    for path in sorted(directory.iterdir()):
        # A full disk or a crash may cut the last record; the resumed run wrote its step again.
        with contextlib.suppress(tf.errors.DataLossError):
            for record in tf.data.TFRecordDataset(str(path)):
                event = tf.compat.v1.Event.FromString(record.numpy())
                for value in event.summary.value:
                    points[value.tag][event.step] = value.simple_value
    return points
