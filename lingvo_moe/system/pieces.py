"""Work in pieces, shared by any number of processes; an interrupted run can be resumed.

A piece is a file that appears by a rename. A process locks a piece before it makes it
(`system/lock.py`); the lock ends with the process. So a killed run leaves only finished pieces, and
the next run makes the others. A manifest in the directory says which job the pieces belong to.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from lingvo_moe.system import lock
from lingvo_moe.system.files import MANIFEST, read_json, remove_partials, write_whole


def begin(directory: Path, job: Mapping[str, str], cure: str) -> None:
    """Writes the job to a new directory, or checks that an existing one has the same job: "maker",
    the tool, and, by name, everything that determines the pieces. `cure` ends the error. Raises
    ValueError: the directory belongs to another job, or holds other files."""
    file = directory / MANIFEST
    with lock.hold(directory, f"{MANIFEST}.lock", wait=True):
        if not file.exists():
            if any(not path.name.startswith(".") for path in directory.iterdir()):
                raise ValueError(
                    f"{directory} is not empty and was not made by {job['maker']}; remove it."
                )
            write_whole(file, json.dumps(job, indent=1))
    begun = read_json(file)
    for name in dict.fromkeys((*job, *begun)):
        if begun.get(name) != job.get(name):
            raise ValueError(
                f"{directory} was started with {name}={begun.get(name)}, but this run has "
                f"{name}={job.get(name)}. {cure}"
            )


def take(path: Path, make: Callable[[], None], wait: bool = False) -> bool:
    """Makes a piece, a file that appears when it is complete, if it is not finished and no other
    process makes it; `wait` waits for that process, and makes the piece if it dies. Returns whether
    this call made it."""
    if path.exists():
        return False
    try:
        with lock.hold(path.parent, f".{path.name}.lock", wait) as locked:
            if path.exists():
                return False
            if locked:  # without a lock another process may write such files now
                remove_partials(path)
            make()
            return True
    except lock.HeldError:
        return False
