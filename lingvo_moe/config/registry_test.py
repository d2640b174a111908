import sys

import pytest

from lingvo_moe.config import registry

MODEL = '''
import dataclasses
from lingvo_moe.config.fields import Params
from lingvo_moe.config.registry import register

@dataclasses.dataclass(frozen=True)
class Named(Params):
    name: str

@register
class {name}:
    """{doc}

    More words.
    """

    def params(self):
        return Named("{name} of " + __name__)
'''


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A zoo of three modules; returns a function that lists the imported ones."""
    package = tmp_path / "menagerie"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "cats.py").write_text(MODEL.format(name="Lion", doc="A big cat."))
    (package / "birds.py").write_text(
        MODEL.format(name="Owl", doc="Sees at night.") + MODEL.format(name="Auk", doc="Dives.")
    )
    (package / "birds_test.py").write_text("raise ImportError('tests are no models')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_PACKAGE", "menagerie")
    monkeypatch.setattr(registry, "_registered", {})
    yield lambda: sorted(name for name in sys.modules if name.startswith("menagerie."))
    for name in [name for name in sys.modules if name.startswith("menagerie")]:
        del sys.modules[name]


def test_lookup_imports_one_module(zoo):
    assert registry.get_params("cats.Lion").name == "Lion of menagerie.cats"
    assert registry.describe("cats.Lion") == "A big cat."
    assert zoo() == ["menagerie.cats"]


def test_all_names_leaves_tests_alone(zoo):
    assert registry.all_names() == ["birds.Auk", "birds.Owl", "cats.Lion"]
    assert zoo() == ["menagerie.birds", "menagerie.cats"]


@pytest.mark.parametrize(
    ("name", "message"), [("cats.Lyon", r"'cats\.Lion'"), ("os.path", "Unknown model")]
)
def test_unknown_names(zoo, name, message):
    with pytest.raises(ValueError, match=message):
        registry.find_model(name)


def make(module, doc):
    return type("Lion", (), {"__module__": module, "__doc__": doc, "params": lambda self: {"a": 1}})


def test_duplicates(zoo):
    registry.register(make("menagerie.cats", "One."))
    with pytest.raises(ValueError, match=r"'cats\.Lion' is registered twice"):
        registry.register(make("elsewhere.cats", "Two."))
    registry.register(make("menagerie.cats", "Changed."))  # a cell of a notebook that runs again
    assert registry.describe("cats.Lion") == "Changed."
