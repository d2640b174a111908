import abc
import dataclasses
import operator
import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lingvo_moe.config import params as params_module
from lingvo_moe.config.fields import FROM_DATA, FromData, Params, PositiveInt
from lingvo_moe.config.params import (
    check_readable,
    from_fields,
    override,
    text_of,
    to_fields,
    to_text,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Params, abc.ABC):
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
class Inner(Params):
    rate: float = 0.1
    limit: float | None = None
    layers: PositiveInt = 2
    tied: bool = True
    shared: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.shared >= self.layers:
            raise ValueError(f"shared must be < layers, got {self.shared}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Params):
    name: str = "base"
    inner: Inner = Inner()
    maybe: Inner | None = None
    policy: Policy = Fixed()
    pairs: tuple[str, ...] = ()
    size: tuple[int, float] = (1, 2.0)
    policies: tuple[Policy, ...] = ()


def test_a_wrong_policy_gets_the_names_of_those_that_can_be_made():
    with pytest.raises(ValueError, match=r"not of type Around or Fixed\."):
        override(Model(), ["policy=x"])


def test_tuples_of_policies():
    """The text that makes them is read back to equal objects."""
    text = "policies=(Fixed(share=1, mode='a, (b'), Around(inner=Fixed()), Fixed)"
    changed = override(Model(), [text])
    expected = (Fixed(share=1.0, mode="a, (b"), Around(inner=Fixed()), Fixed())
    assert changed.policies == expected
    assert type(changed.policies[0].share) is float
    assert override(Model(), ["policies=Fixed(share=0.1)"]).policies == (Fixed(share=0.1),)
    assert override(changed, ["policies=()"]).policies == ()
    bare = override(Model(), ["policies=(Fixed(mode=build/b-t), Fixed(mode=0x10))"]).policies
    assert bare == (Fixed(mode="build/b-t"), Fixed(mode="0x10"))
    fields = to_fields(changed)
    name = f"{__name__}." if not __name__.startswith("lingvo_moe") else ""
    assert fields["policies"].startswith(f"({name}Fixed(mode='a, (b', share=1.0), {name}Around(")
    assert from_fields(Model, fields, "x") == changed
    assert from_fields(Model, to_fields(Model()), "x") == Model()


@pytest.mark.parametrize("text", ['it\'s "b"', r"\d+\t", "a\tb\u3000c", "'quoted'", ""])
def test_texts_are_read_as_they_were_written(text):
    model = Model(name=text, policies=(Fixed(mode=text),), policy=Fixed(mode=text))
    assert from_fields(Model, to_fields(model), "x") == model
    assert override(Model(), [f"policies={text_of(model.policies)}"]).policies == model.policies


@pytest.mark.parametrize(
    ("path", "value", "read"),
    [
        ("inner.layers", np.int64(3), 3),
        ("inner.rate", np.float64(0.25), 0.25),
        ("name", Path("/a/it's"), "/a/it's"),
        ("pairs", ["de-en", np.str_("fr-en")], ("de-en", "fr-en")),
        ("size", [1, np.float32(0.5)], (1, 0.5)),
        ("policy", "Around(inner=Fixed(share=0.1))", Around(inner=Fixed(share=0.1))),
        ("policies", [Fixed, Around(inner=Fixed())], (Fixed(), Around(inner=Fixed()))),
    ],
)
def test_values_of_python_programs_are_read_as_they_are_meant(path, value, read):
    found = operator.attrgetter(path)(override(Model(), [f"{path}={text_of(value)}"]))
    assert found == read
    assert type(found) is type(read)


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
        (r"name='a\tb'", "name", "a\tb"),
        (r"name=a\tb", "name", r"a\tb"),
        ("name='a' and 'b'", "name", "a' and 'b"),
        ("name=None", "name", "None"),
        ("name=' a '", "name", " a "),
        ("inner.limit=2.5", "inner.limit", 2.5),
        (" inner.layers = 3 ", "inner.layers", 3),
        ("pairs=('de-en', 'fr-en')", "pairs", ("de-en", "fr-en")),
        ("size=(3, 4)", "size", (3, 4)),
        ("maybe=Inner(layers=7)", "maybe", Inner(layers=7)),
        ("policy=Fixed()", "policy", Fixed()),
        ("policy=Fixed(mode='random', share=1)", "policy", Fixed(mode="random", share=1.0)),
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
    to_more, to_less = (["inner.layers=9", "inner.shared=5"], ["inner.shared=0", "inner.layers=1"])
    more = override(Model(), to_more[::turn])
    assert more.inner == Inner(layers=9, shared=5)
    assert override(more, to_less[::turn]).inner == Inner(layers=1)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("inner.layers", "must read"),
        ("inner.layer=3", "mean 'layers'"),
        ("layers=3", "mean 'inner.layers'"),
        ("maybe.layers=3", "set the parent"),
        ("inner.layers=2.5", "type int"),
        ("inner.limit=fast", r"type float \| None"),
        ("pairs=de-en", r"type tuple\[str"),
        ("policy=Fixed('random')", "write it"),
        ("policy=Around()", "'inner'"),
        ("inner.layers=0", r"^--set=inner\.layers=0: layers must"),
    ],
)
def test_errors(assignment, message):
    with pytest.raises(ValueError, match=message):
        override(Model(), [assignment])


def test_a_path_without_its_beginning():
    @dataclasses.dataclass(frozen=True)
    class Outer:
        model: Model = Model()

    with pytest.raises(ValueError, match=r"mean 'model\.inner\.rate'"):
        override(Outer(), ["inner.rate=1"])


HOSTILE = {
    "code": "__import__('os').abort()",
    "a lambda": "(lambda: 3)()",
    "a NUL": "Fixed(mode='\0')",
    "deep policies": "Around(inner=" * 5000 + "Fixed()" + ")" * 5000,
    "a huge number": "9" * 5000,
    "infinity for a count": "Around(inner=Fixed(), times=1e999)",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("field", ["policy", "inner.layers", "size", "maybe"])
def test_hostile_values_run_no_code_and_are_refused_in_one_short_line(field, text):
    with pytest.raises(ValueError, match=r"^--set=") as caught:
        override(Model(), [f"{field}={text}"])
    message = str(caught.value)
    assert field in message
    assert len(message) < 700
    assert "\n" not in message


def test_to_text_in_declared_order():
    text = to_text(Model(pairs=("de-en",), policy=Around(inner=Fixed())))
    assert text.startswith("name : 'base'\ninner : Inner\ninner.rate : 0.1\ninner.limit : None\n")
    assert "\npolicy : Around\npolicy.inner : Fixed\npolicy.inner.mode : 'always'\n" in text
    assert text.endswith("\npairs : ('de-en',)\nsize : (1, 2.0)\npolicies : ()\n")


def test_params_come_back_from_their_fields():
    inner = Inner(rate=0.25, limit=2.0, tied=False)
    params = Model(name="it's", maybe=inner, policy=Around(inner=Fixed(mode="b")), pairs=("a-b",))
    assert from_fields(Model, to_fields(params), "model.json") == params
    assert from_fields(Model, {"name": "'old'"}, "model.json") == Model(name="old")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen(Params):
    steps: PositiveInt | FromData = FROM_DATA
    fixed: PositiveInt = 1
    policies: tuple[Policy, ...] | FromData = ()


def test_fields_that_are_computed_from_data():
    assert to_fields(Chosen())["steps"] == "FROM_DATA"
    assert from_fields(Chosen, to_fields(Chosen()), "model.json").steps is FROM_DATA
    assert pickle.loads(pickle.dumps(Chosen())).steps is FROM_DATA
    assert override(Chosen(), ["steps=5"]).steps == 5
    params = override(Chosen(), ["steps=5", "steps=FROM_DATA", "policies=FROM_DATA"])
    assert params == Chosen(policies=FROM_DATA)
    with pytest.raises(ValueError, match=r"fixed=FROM_DATA: 'FROM_DATA' is not of type int"):
        override(Chosen(), ["fixed=FROM_DATA"])
    with pytest.raises(ValueError, match=r"not of type int \| FROM_DATA"):
        override(Chosen(), ["steps=many"])
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        Chosen(steps=0)


def test_a_class_from_outside_has_its_module():
    module = types.ModuleType("my_policies.late")
    source = "class Late(Fixed): pass"
    exec(source, vars(module) | {"Fixed": Fixed, "__name__": "my_policies.late"}, vars(module))
    params = Model(policy=dataclasses.dataclass(frozen=True, kw_only=True)(module.Late)(share=0.1))
    fields = to_fields(params)
    assert fields["policy"] == "my_policies.late.Late"
    assert from_fields(Model, fields, "model.json") == params
    with pytest.raises(ValueError, match=r"class my_policies\.gone\.Late; import its module, my_"):
        from_fields(Model, fields | {"policy": "my_policies.gone.Late"}, "model.json")
    with pytest.raises(ValueError, match=r"a notebook or a session defined Late; define it there"):
        from_fields(Model, fields | {"policy": "__main__.Late"}, "model.json")


def _subclass(name, module):
    cls = type(name, (Fixed,), {"__module__": module, "__qualname__": name})
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def test_classes_of_one_name_are_told_apart_by_their_modules():
    """A name without a module is a class of this package; the last definition of a class counts."""
    first, second = _subclass("Twin", "mine.a"), _subclass("Twin", "mine.b")
    again = _subclass("Twin", "mine.b")
    assert type(override(Model(), ["policy=mine.a.Twin"]).policy) is first
    assert type(override(Model(), ["policy=mine.b.Twin(share=0.1)"]).policy) is again is not second
    for policy in (first(share=0.2), (inner := Around(inner=again()))):
        assert override(Model(), [f"policy={text_of(policy)}"]).policy == policy
    assert type(override(Model(), [f"policy={text_of(inner)}"]).policy.inner) is again
    with pytest.raises(ValueError, match=r"policy=Twin: several .* write mine\.a\.Twin or mine\.b"):
        override(Model(), ["policy=Twin"])


def test_a_class_of_a_plug_in_with_the_name_of_one_of_this_package(monkeypatch):
    monkeypatch.setattr(params_module, "_is_ours", lambda cls: cls.__module__ != "mine.c")
    other = _subclass("Around", "mine.c")
    assert type(override(Model(), ["policy=Around(inner=Fixed())"]).policy) is Around
    assert type(override(Model(), ["policy=mine.c.Around"]).policy) is other


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": "2"}, r"model\.json: layers=2 is not a field of Model in this version"),
        ({"inner": "Inner", "inner.rate": "'fast'"}, r"inner\.rate='fast': .* not of type float"),
        ({"inner": "Inner", "inner.layers": "0"}, r"json: inner: layers must be >= 1, got 0"),
        ({"pairs": "(" * 5000}, "is not of type tuple"),
    ],
)
def test_fields_that_are_no_params(fields, message):
    with pytest.raises(ValueError, match=message):
        from_fields(Model, fields, "model.json")


@pytest.mark.parametrize(
    ("hint", "value", "readable"),
    [(tuple[int, ...], (1, 2), True), (Path, Path("there"), False), (Any, print, False)],
)
def test_params_that_cannot_be_read_again(hint, value, readable):
    holder = dataclasses.make_dataclass(
        "Holder", [("value", hint)], bases=(Fixed,), frozen=True, kw_only=True
    )
    params = Model(policy=holder(value=value))
    if readable:
        check_readable(params)
        return
    with pytest.raises(ValueError, match=r"cannot be read again from a file: .*policy\.value"):
        check_readable(params)
