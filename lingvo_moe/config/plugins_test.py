import importlib.machinery
import sys
import types

import pytest

from lingvo_moe.config import plugins
from lingvo_moe.config.params import parse_policy, text_of
from lingvo_moe.moe.gatings.base import Gating

pytestmark = pytest.mark.usefixtures("fresh_plugins")


def test_a_file_is_a_module_and_is_imported_once(tmp_path, monkeypatch):
    path = tmp_path / "mine_a.py"
    path.write_text("count = globals().get('count', 0) + 1\n")
    monkeypatch.chdir(tmp_path)
    plugins.import_plugins(["mine_a.py", str(path)])
    assert sys.modules["mine_a"].count == 1
    assert plugins.imported() == (str(path),)


def test_a_file_of_any_name_is_a_module(tmp_path, fresh_plugins):
    (tmp_path / "2-gates.py").write_text(
        "import dataclasses\n"
        "from lingvo_moe.moe.gatings.top_2 import Top2\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Mine(Top2): pass\n"
    )
    plugins.import_plugins([str(tmp_path / "2-gates.py")])
    mine = sys.modules["_2_gates"].Mine()
    assert text_of(mine).startswith("_2_gates.Mine(")
    assert parse_policy(Gating, text_of(mine), "--gating") == mine
    assert plugins.is_moved("/gone/2-gates.py")


def test_a_module_is_looked_for_in_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "mine_b").mkdir()
    (tmp_path / "mine_b" / "models.py").write_text("found = True\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    plugins.import_plugins(["mine_b.models"])
    assert sys.modules["mine_b.models"].found


@pytest.mark.parametrize(
    ("main", "name"),
    [
        ({"__file__": "/here/mine.py"}, "/here/mine.py"),
        ({"__file__": "/bin/a-console-script"}, "__main__"),
        ({}, "__main__"),  # a notebook
        ({"__spec__": importlib.machinery.ModuleSpec("my.module", None)}, "my.module"),
    ],
)
def test_the_running_script_is_found_by_its_file_or_module(main, name, monkeypatch):
    module = types.ModuleType("__main__")
    vars(module).update(main)
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert plugins.import_name("__main__") == name
    assert plugins.module_name(type("Mine", (), {"__module__": "__main__"})) == {
        "/here/mine.py": "mine"
    }.get(name, name)
    assert plugins.import_name("json") == "json"


def test_a_script_that_was_moved_is_found_by_its_name(tmp_path, monkeypatch):
    """A logdir stores the path that the script had."""
    main = types.ModuleType("__main__")
    main.__spec__, main.__file__ = None, str(tmp_path / "mine_s.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert plugins.is_moved("/gone/mine_s.py")
    assert not plugins.is_moved("/gone/other.py")
    (tmp_path / "mine_s.py").touch()
    assert not plugins.is_moved(str(tmp_path / "mine_s.py"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine_x.py", None, r"--import=.*/mine_x\.py: there is no such file\."),
        ("json.py", "", r"a module named 'json' is loaded already \(.*Rename the file"),
        ("bad_b.py", "1 / 0", r"--import=.*/bad_b\.py failed: ZeroDivisionError: "),
        ("bad_d.py", "import sys; sys.exit(0)", r"--import=.*/bad_d\.py failed: SystemExit: 0\."),
    ],
)
def test_what_cannot_be_imported_is_one_clear_error(name, text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        plugins.import_plugins([name])
    assert plugins.imported() == ()
    assert not {"bad_a", "bad_b", "bad_c", "bad_d"} & set(sys.modules)
