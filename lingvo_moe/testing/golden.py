"""Writes what each registered model changes of the defaults; see `make golden`.

python -m lingvo_moe.testing.golden testdata/golden
"""

import sys
from pathlib import Path

from lingvo_moe.config import registry
from lingvo_moe.config.params import to_changes


def main(directory):
    """Writes directory/NAME.txt for each model."""
    for name in registry.all_names():
        changes = to_changes(registry.get_params(name))
        text = "".join(f"{path} : {changes[path]}\n" for path in changes)
        (directory / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
