"""Writes what each registered model changes of the defaults; see `make golden`.

python -m lingvo_moe.testing.golden testdata/golden
"""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lingvo_moe.config import registry
from lingvo_moe.config.params import text_of


def to_changes(params: Any) -> dict[str, str]:
    """Those of `to_fields` that are not the defaults of their class; `from_fields` reads them."""
    return dict(_changes(params, _defaults(type(params)), ""))


def _changes(params: Any, defaults: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in vars(params).items():
        path, default = prefix + name, defaults.get(name, ...)
        if not dataclasses.is_dataclass(value):
            if default is ... or text_of(value) != text_of(default):
                yield path, text_of(value)
            continue
        same = type(value) is type(default)
        below = list(_changes(value, vars(default) if same else _defaults(type(value)), f"{path}."))
        if below or not same:
            yield path, text_of(type(value))
            yield from below


def _defaults(cls: type) -> dict[str, Any]:
    """Field -> its default; without the fields that have none."""
    fields = dataclasses.fields(cls)
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


def main(directory):
    """Writes directory/NAME.txt for each model."""
    for name in registry.all_names():
        changes = to_changes(registry.get_params(name))
        text = "".join(f"{path} : {changes[path]}\n" for path in changes)
        (directory / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
