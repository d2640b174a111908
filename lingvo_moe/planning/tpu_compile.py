"""Compiles full-size training steps and beam searches with the TPU compiler, without a TPU.

libtpu can describe any pod ("v3:32x32": 32 x 32 chips of a TPU v3, two cores each). A device is
what JAX calls one on the real machine: a core of a v3 chip, a whole chip of v4 or v5p. Compiling
for its devices is ordinary ahead-of-time compilation from shapes, without weights. libtpu allows
one process at a time and reads its settings when it is loaded, so a separate process does the work:
`python -m lingvo_moe.planning.tpu_compile`.
"""

import collections
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.config.plugins import import_plugins, imported
from lingvo_moe.runtimes.hlo import Collective, collectives
from lingvo_moe.sbp.types import Mesh, parse_mesh

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # otherwise JAX would look for a TPU
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server
    "TPU_ACCELERATOR_TYPE": "v5p-8",  # any; the topology decides
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
_KEPT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")
_HELD = "libtpu multi-process lockfile"  # libtpu's message if another process uses it


def compile_step(
    model: str,
    overrides: Sequence[str],
    topology: str,
    mesh: Mesh | None = None,
    progress: Callable[[str], None] = lambda line: None,
    sentences: int | None = None,
) -> dict[str, Any]:
    """Compiles a registered model's training step, or its beam search, for a TPU topology.

    Args:
        model, overrides: a registered name, and `--set` texts.
        topology: such as "v3:8x8" (chips), "v4:4x4x4", "v5p:2x2x2".
        mesh: the devices; None for one axis "expert" of all.
        progress: takes a line if another process uses the compiler.
        sentences: of beam search, with input.source_length tokens each; None for a training step.

    Returns:
        The result of `_run`. Its bytes are of a device: arguments are the batch, and the state or,
        for beam search, the weights. The body of a loop counts once in flops.

    Raises ValueError: libtpu or JAX is not installed, or the compiler fails: an unknown topology, a
    mesh of another size, a program that does not fit.
    """
    for package in ("jax", "libtpu"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(
                f"--compile needs {package}, which is not installed: pip install {package}."
            )
    job = {
        "model": model,
        "overrides": list(overrides),
        "topology": topology,
        "mesh": str(mesh) if mesh else None,
        "imports": imported(),
        "sentences": sentences,
    }
    while _HELD in (answer := _run_in_subprocess(job)).get("error", ""):
        progress("Another process holds libtpu; trying again in half a minute.")
        time.sleep(30)
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


def _run_in_subprocess(job) -> dict[str, Any]:
    """Runs `_main` in a subprocess; returns its result or {"error": …}."""
    environment = {k: os.environ[k] for k in _KEPT if k in os.environ} | _ENVIRONMENT
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "compiled.json"
        process = subprocess.run(
            [sys.executable, "-m", "lingvo_moe.planning.tpu_compile", json.dumps(job), str(output)],
            capture_output=True,
            text=True,
            env=environment,
        )
        if output.exists():
            return json.loads(output.read_text())
    return {"error": f"Compiling for {job['topology']} failed: {_reason(process)}"}


def _reason(process: subprocess.CompletedProcess) -> str:
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    if process.returncode < 0:
        return f"killed by signal {-process.returncode}; out of memory, most likely."
    return lines[-1] if lines else f"exit status {process.returncode}."


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    """The work, in the process that holds libtpu."""
    import jax

    import lingvo_moe.zoo  # noqa: F401  registers the models
    from lingvo_moe.tasks.recipe import registered

    import_plugins(job["imports"])
    params = registered(job["model"], job["overrides"])
    devices = _devices_of(job["topology"])
    mesh = parse_mesh(job["mesh"]) if job["mesh"] else Mesh(("expert",), (len(devices),))
    lowered = lower_for_devices(params, mesh, devices, job["sentences"])
    start = time.process_time()
    compiled = lowered.compile()
    seconds, memory = time.process_time() - start, compiled.memory_analysis()
    try:
        found = collective_rows(collectives(compiled.as_text()))
    except jax.errors.JaxRuntimeError:  # libtpu has instructions that this JAX does not know
        found = None
    search = f"beam search of {job['sentences']} sentences of {params.input.source_length} tokens"
    sizes = {
        "argument_bytes": memory.argument_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }
    return {
        "program": "training step" if job["sentences"] is None else search,
        "topology": job["topology"],
        "device_kind": devices[0].device_kind,
        "devices": len(devices),
        **sizes,
        "total_bytes": sum(sizes.values()) - 2 * sizes["alias_bytes"],
        "flops": compiled.cost_analysis()["flops"],
        "collectives": found,
        "compile_cpu_seconds": seconds,
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def collective_rows(found: Iterable[Collective]) -> list[dict[str, Any]]:
    """A program's collectives, those with most bytes first, equal ones in one row: times, kind,
    bytes of one, group (devices that exchange; 0 for all) and cause, the model's operation."""
    rows: collections.Counter = collections.Counter()
    for c in found:
        rows[c.kind, c.bytes, len(c.groups[0]) if c.groups else 0, _cause(c.op_name)] += c.times
    names = ("kind", "bytes", "group", "cause")
    named = [{"times": n} | dict(zip(names, key, strict=True)) for key, n in rows.items()]
    return sorted(named, key=lambda row: -row["times"] * row["bytes"])


def _cause(op_name: str) -> str:
    """The part of an op_name from the model, such as "encoder/layer_01/dispatch, gradient".

    XLA's metadata wraps it in the names of programs and joins the names of fused operations with
    semicolons: "jit(call)/call_tf/gradient_tape/layer_01/dispatch/Einsum;PartitionedCall/…".
    """
    wrappers = ("jit(", "call_", "PartitionedCall", "StatefulPartitionedCall")
    names = [n for n in op_name.split(";")[0].split("/") if n and not n.startswith(wrappers)]
    path = "/".join(name for name in names if name != "gradient_tape")
    return (path or op_name) + (", gradient" if "gradient_tape" in names else "")


def _devices_of(topology: str) -> list[Any]:
    """The devices of a topology, such as "v3:8x8"."""
    from jax.experimental import topologies

    # Both cores of a v4 chip run as one device, unless libtpu is told otherwise.
    config = "megacore" if topology.startswith("v4:") else "default"
    try:
        return topologies.get_topology_desc(
            topology_name=topology, platform="tpu", chip_config_name=config
        ).devices
    except Exception as error:  # XlaRuntimeError, which has no public type
        raise ValueError(
            f"Topology {topology!r}: {str(error).splitlines()[0]} Give a generation and its chips, "
            f"such as v3:8x8, v4:4x4x4, v5e:4x4 or v5p:2x2x2."
        ) from error


def lower_for_devices(
    params: Any, mesh: Mesh, devices: list[Any], sentences: int | None = None
) -> Any:
    """The training step, or the beam search of so many sentences, lowered (jax.stages.Lowered) for
    devices that need not exist, one for each position of the mesh.

    TensorFlow cannot lower for TPUs without a TPU build. Its StableHLO for a CPU has no custom
    calls, so it is not specific to CPUs. It is exported and called inside a program for the
    devices.
    """
    import jax
    import numpy as np
    from jax import export

    from lingvo_moe.data.packing import Shape, batch_of
    from lingvo_moe.jobs.training import train_step
    from lingvo_moe.runtimes.lowering import (
        Layout,
        batch_specs,
        partition_train_step,
        partition_translate,
        shapes,
    )
    from lingvo_moe.tasks.translation import TranslationTask

    layout = Layout(mesh, params.sharding, tuple(devices))
    length, trains = params.input.source_length, sentences is None
    sizes: dict[str, Any] = {"source_ids": (sentences, length), "lengths": (sentences,)}
    if trains:
        one_row = batch_of([], Shape(1, length, params.input.target_length))
        sizes = {name: (params.input.batch_size, x.shape[1]) for name, x in one_row.items()}
    specs = batch_specs({n: jax.ShapeDtypeStruct(size, np.int32) for n, size in sizes.items()})
    task = TranslationTask(params)
    if trains:
        program, args = partition_train_step(train_step(task), specs, layout)
    else:
        program, args = partition_translate(task.for_xla(layout.groups), specs, layout)
    checks = export.DisabledSafetyCheck
    exported = export.export(
        program,
        platforms=["cpu"],
        disabled_checks=[checks.platform(), checks.custom_call("Sharding")],
    )(*shapes(args))
    state, fed = (layout.shardings(specs) for specs in args)
    outer = jax.jit(
        exported.call,
        in_shardings=(state, fed),
        out_shardings=(state, layout.replicated) if trains else layout.replicated,
        donate_argnums=(0,) if trains else (),
    )
    return outer.lower(*shapes(args))


def _main(job: str, output: str) -> None:
    try:
        answer = _run(json.loads(job))
    except Exception as error:  # the parent reports any error as one line
        answer = {"error": str(error).strip() or repr(error)}
    Path(output).write_text(json.dumps(answer))


if __name__ == "__main__":
    _main(*sys.argv[1:])
