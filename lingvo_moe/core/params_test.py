import abc
import dataclasses

import pytest

from lingvo_moe.core.params import conforms, override, to_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(abc.ABC):
    @abc.abstractmethod
    def apply(self): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fixed(Policy):
    mode: str = "always"
    share: float = 0.5

    def apply(self): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Around(Policy):
    inner: Policy
    times: int = 1

    def apply(self): ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1
    limit: float | None = None
    layers: int = 2
    tied: bool = True
    shared: int = 0

    def __post_init__(self):
        if self.layers < 1:
            raise ValueError(f"layers must be >= 1, got {self.layers}.")
        if self.shared >= self.layers:
            raise ValueError(f"shared must be < layers, got {self.shared}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    name: str = "base"
    inner: Inner = Inner()
    maybe: Inner | None = None
    policy: Policy = Fixed()
    pairs: tuple[str, ...] = ()
    size: tuple[int, float] = (1, 2.0)


def test_override_replaces_and_leaves_the_original():
    base = Model()
    changed = override(base, ["inner.layers=4", "inner.rate=1", "inner.tied=False", "name=big one"])
    assert changed == Model(name="big one", inner=Inner(layers=4, rate=1.0, tied=False))
    assert type(changed.inner.rate) is float
    assert base == Model()


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("name='quoted'", "name", "quoted"),
        ("name=a=b", "name", "a=b"),
        ("name=None", "name", "None"),
        ("inner.limit=2.5", "inner.limit", 2.5),
        ("inner.limit=None", "inner.limit", None),
        (" inner.layers = 3 ", "inner.layers", 3),
        ("pairs=('de-en', 'fr-en')", "pairs", ("de-en", "fr-en")),
        ("pairs=()", "pairs", ()),
        ("size=(3, 4)", "size", (3, 4)),
        ("maybe=Inner(layers=7)", "maybe", Inner(layers=7)),
        ("policy=Fixed", "policy", Fixed()),
        ("policy=Fixed()", "policy", Fixed()),
        ("policy=Fixed(mode='random', share=1)", "policy", Fixed(mode="random", share=1.0)),
        ("policy=Around(inner=Fixed(share=0.25))", "policy", Around(inner=Fixed(share=0.25))),
    ],
)
def test_values(assignment, path, value):
    result = override(Model(), [assignment])
    for name in path.split("."):
        result = getattr(result, name)
    assert result == value


def test_later_assignments_see_earlier_ones():
    changed = override(Model(), ["maybe=Inner()", "maybe.layers=9", "policy=Around(inner=Fixed())"])
    assert override(changed, ["policy.times=3", "policy.inner.share=0"]) == Model(
        maybe=Inner(layers=9), policy=Around(inner=Fixed(share=0.0), times=3)
    )


@pytest.mark.parametrize("turn", [1, -1])
def test_fields_that_must_agree_come_in_any_order(turn):
    to_more, to_less = (
        ["inner.layers=9", "inner.shared=5"],
        ["inner.shared=0", "inner.layers=1"],
    )
    more = override(Model(), to_more[::turn])
    assert more.inner == Inner(layers=9, shared=5)
    assert override(more, to_less[::turn]).inner == Inner(layers=1)


def test_an_int_for_an_optional_float_becomes_one():
    assert type(override(Model(), ["inner.limit=2"]).inner.limit) is float


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("inner.layers", r"--set='inner.layers' must read dotted\.path=value"),
        ("=3", "must read dotted"),
        ("inner.layer=3", r"inner\.layer: Inner has no field 'layer'. Did you mean 'layers'\?"),
        ("iner.layers=3", "Model has no field 'iner'. Did you mean 'inner'"),
        ("zzz=3", "Model has no field 'zzz'. Did you mean 'name', 'inner', 'maybe', 'policy'"),
        ("maybe.layers=3", "NoneType has no field 'layers'. Did you mean a shorter path"),
        ("inner.layers.x=3", "int has no field 'x'"),
        ("inner.layers=2.5", r"inner\.layers=2\.5: '2\.5' is not of type int"),
        ("inner.layers=True", "'True' is not of type int"),
        ("inner.rate=fast", "'fast' is not of type float"),
        ("inner.limit=fast", r"'fast' is not of type float \| None"),
        ("inner.tied=1", "'1' is not of type bool"),
        ("pairs=de-en", r"'de-en' is not of type tuple\[str, \.\.\.\]"),
        ("pairs=(1,)", r"is not of type tuple\[str"),
        ("size=(1,)", r"is not of type tuple\[int, float\]"),
        ("policy=fixed", "'fixed' is not of type Around or Fixed or Policy"),
        ("policy=Fixed('random')", r"write it as Fixed\(field=value, …\)"),
        ("policy=Fixed(mode=", r"write it as Fixed\(field=value, …\)"),
        ("policy=Fixed(shares=1)", r"Fixed has no field 'shares'. Did you mean 'share'"),
        ("policy=Fixed(share='x')", r"policy\.share='x': \"'x'\" is not of type float"),
        ("policy=Around()", "missing 1 required keyword-only argument: 'inner'"),
        ("policy=Policy()", "abstract class"),
        ("inner.layers=0", r"layers must be >= 1, got 0"),
    ],
)
def test_errors(assignment, message):
    with pytest.raises(ValueError, match=message):
        override(Model(), [assignment])


def test_conforms():
    assert conforms(1, float)
    assert conforms("x", object)
    assert conforms(None, int | None)
    assert conforms((1, 2), tuple[int, ...])
    assert not conforms((1, "2"), tuple[int, ...])
    assert not conforms([1], tuple[int, ...])
    assert not conforms(True, float)
    assert not conforms(None, int)


def test_to_text_in_declared_order():
    assert to_text(Model(pairs=("de-en",), policy=Around(inner=Fixed()))) == (
        "name : 'base'\n"
        "inner : Inner\n"
        "inner.rate : 0.1\n"
        "inner.limit : None\n"
        "inner.layers : 2\n"
        "inner.tied : True\n"
        "inner.shared : 0\n"
        "maybe : None\n"
        "policy : Around\n"
        "policy.inner : Fixed\n"
        "policy.inner.mode : 'always'\n"
        "policy.inner.share : 0.5\n"
        "policy.times : 1\n"
        "pairs : ('de-en',)\n"
        "size : (1, 2.0)\n"
    )
