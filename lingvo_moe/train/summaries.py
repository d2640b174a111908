"""Scalars for TensorBoard, written without it: event files are TFRecords of Event protos."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf


class SummaryWriter:
    """Appends scalars to a new events file in a directory, which TensorBoard then shows."""

    def __init__(self, directory: Path):
        """Opens the file; makes the directory if need be."""
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = tf.io.TFRecordWriter(str(directory / name))
        self._write(tf.compat.v1.Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes values by tag ("train/loss") at a step and flushes."""
        summary = tf.compat.v1.Summary(
            value=[
                tf.compat.v1.Summary.Value(tag=tag, simple_value=float(value))
                for tag, value in values.items()
            ]
        )
        self._write(tf.compat.v1.Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()

    def _write(self, event):
        self._writer.write(event.SerializeToString())
