"""Plug-ins: models and policies in modules outside this package.

A plug-in module defines models with the decorator `register`, and policies as subclasses of
`Gating`, `Router`, `Dispatcher`, `Optimizer` and so on. Once it is imported, `--model` and `--set`
find them like those of this package.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

_imported: dict[str, ModuleType] = {}


def import_plugins(names: Iterable[str]) -> None:
    """Imports modules for the models and policies that they define; each is imported once.

    A name is `my.module`, searched in the current directory too, or a file: `models/mine.py`
    becomes the module `mine`, and `my-gates.py` becomes `my_gates`. The running script is left out.
    Raises ValueError: there is no such module or file, another module has its name, or its import
    fails.
    """
    for name in names:
        name = os.path.abspath(name) if name.endswith(".py") else name
        if name not in _imported and name != import_name("__main__"):
            _imported[name] = _import(name)


def imported() -> tuple[str, ...]:
    """The names that `import_plugins` has imported, files as absolute paths."""
    return tuple(_imported)


def is_moved(name: str) -> bool:
    """Whether a file is gone, but a file of the same name elsewhere has been imported."""
    path = Path(name)
    gone = path.suffix == ".py" and not path.exists()
    script = _module_of(Path(import_name("__main__")))
    return gone and _module_of(path) in {script, *(module.__name__ for module in modules())}


def modules() -> set[ModuleType]:
    """The modules that `import_plugins` imported."""
    return set(_imported.values())


def source_files() -> list[Path]:
    """The files of the imported modules; of a package all of its Python files."""
    files = (Path(module.__file__) for module in modules() if module.__file__)
    return sorted({source for file in files for source in _sources(file)})


def digest(name: str) -> str:
    """SHA-256 of the source of an imported module, by its name in `imported` or `import_name`.

    It is the file that is imported, though a file of that name may be elsewhere; "" without a file.
    """
    module = sys.modules.get(_module_of(Path(name)) if name.endswith(".py") else name)
    files = _sources(Path(getattr(module, "__file__", None) or name))
    contents = [file.read_bytes() for file in files if file.is_file()]
    return hashlib.sha256(b"\0".join(contents)).hexdigest() if contents else ""


def _sources(file: Path) -> list[Path]:
    """The Python files of a module, or those of its whole package."""
    return sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]


def import_name(module: str) -> str:
    """The name by which `import_plugins` of another process can import a module loaded here: of
    "__main__", the running script, its file as an absolute path, or "__main__" if there is no file,
    as in a notebook."""
    if module != "__main__":
        return module
    main = sys.modules[module]
    if spec := getattr(main, "__spec__", None):  # python -m
        return spec.name
    file = getattr(main, "__file__", None) or ""
    return os.path.abspath(file) if file.endswith(".py") else module


def module_name(cls: type) -> str:
    """The module of a class, with the name that it has when it is imported."""
    name = import_name(cls.__module__)
    return _module_of(Path(name)) if name.endswith(".py") else name


def _module_of(path: Path) -> str:
    """The name of the module of a file; other characters would not be a name in `--set` texts."""
    return re.sub(r"\W|^(?=\d)", "_", path.stem)


def _import(name: str) -> ModuleType:
    try:
        # Standard output is for results, such as translations, not for what a module prints.
        with contextlib.redirect_stdout(sys.stderr):
            return _import_file(Path(name)) if name.endswith(".py") else _import_module(name)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:  # whatever the module does at import
        raise ValueError(
            f"--import={name} failed: {type(error).__name__}: {error}. Correct the module."
        ) from error


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # console scripts do not look in the current directory
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its imports does not
        raise ValueError(
            f"--import={name}: there is no module {error.name!r}. Install it, or give the path of "
            f"its file, such as --import=models/mine.py."
        ) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"--import={path}: there is no such file.")
    module_name = _module_of(path)
    loaded = sys.modules.get(module_name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        raise ValueError(
            f"--import={path}: a module named {module_name!r} is loaded already"
            f" ({getattr(loaded, '__file__', 'built in')}). Rename the file."
        )
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec, path  # any file that ends in .py has one, with a loader
    assert spec.loader, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
