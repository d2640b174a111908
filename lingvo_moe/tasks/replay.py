"""Repeats a step that training skipped, and finds its first operation that is not finite."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_moe.core.plugins import source_files
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.training import train_step
from lingvo_moe.tasks.translation import RuntimeFn
from lingvo_moe.training.checkpoint import Checkpointer
from lingvo_moe.training.recovery import BATCH, DIRECTORY

# Parts of the message of TensorFlow's check_numerics.
_OPERATION = re.compile(r'output \d+ of graph op "([^"]+)"')
_INPUTS = re.compile(r'Tensor\("([^"]+)"')
_SHAPE = re.compile(r"shape: (\(.*?\))")
_VALUES = re.compile(r"Tensor had (.+?) values")
_CODE = re.compile(r"(\S+\.py) \(L(\d+)\)")
_OURS = Path(__file__).parents[1]
_HELPERS = ("core", "sharding")  # packages that many layers call
_FRAMES = 3  # number of innermost lines of code that are named


def replay(
    model_dir: ModelDir,
    make_runtime: RuntimeFn,
    report: Callable[[str], None],
    step: int | None = None,
) -> str | None:
    """Repeats a step that training saved, while TensorFlow checks the result of every operation.

    Args:
        model_dir: the logdir, with the params of training.
        make_runtime: makes a runtime for one device (runtimes.local).
        report: takes a progress line.
        step: number of steps before the saved step; None for the newest.

    Returns:
        The first operation whose output is not finite, with its layer and the line of code; None if
        all are finite.

    Raises:
        ValueError: training has not saved a step, as no step ended it.
        OSError: there is no such step, or its files are damaged.
    """
    checkpoints = Checkpointer(model_dir.path / DIRECTORY)
    if not checkpoints.steps():
        raise ValueError(
            f"{model_dir.path} has no step to repeat: training saves one only when it ends because "
            f"a loss or a gradient is not finite."
        )
    saved = checkpoints.read(step)
    report(f"Replaying step {saved.step + 1}, saved in {saved.path} …")
    batch = {
        name.removeprefix(BATCH): np.asarray(tensor)
        for name, tensor in saved.tensors.items()
        if name.startswith(BATCH)
    }
    runtime: Any = make_runtime(model_dir.task, train_step(model_dir.task))
    runtime.restore(saved.tensors)
    tf.debugging.enable_check_numerics(stack_height_limit=100)
    try:
        metrics = runtime.train(batch)
    except tf.errors.InvalidArgumentError as error:
        return _first(error.message)
    finally:
        tf.debugging.disable_check_numerics()
    return "an operation that TensorFlow does not check" if float(metrics.skipped_steps) else None


def _first(message: str) -> str:
    """The operation in TensorFlow's message, in one line."""
    found = [p.search(message) for p in (_OPERATION, _VALUES, _SHAPE)]
    if not all(found):
        return message
    name, values, shape = (match[1] for match in found if match)
    inputs = ", ".join(_INPUTS.findall(message)) or "none"
    named = [(_name(Path(file)), line) for file, line in _CODE.findall(message)]
    code = [f"{name}:{line}" for name, line in named if name]
    where = f", computed in {' > '.join(code[-_FRAMES:])}" if code else ""
    return f"{name!r} {shape} has {values} values{where}; its inputs: {inputs}"


def _name(file: Path) -> Path | None:
    """The path to show for a file of a layer or a plug-in; None for others."""
    if file.is_relative_to(_OURS):
        inside = file.relative_to(_OURS)
        return _OURS.name / inside if inside.parts[0] not in _HELPERS else None
    return file if file in {one.resolve() for one in source_files()} else None
