"""The worked example of docs/howto/own_routing.md does what the page says."""

import re
import sys
import types
from pathlib import Path

import pytest

from lingvo_moe.moe.gatings.base import Gating

DOCS = Path(__file__).parents[3] / "docs"


def test_the_worked_example_passes_its_own_test(monkeypatch):
    page = (DOCS / "howto" / "own_routing.md").read_text()
    policy, its_test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    module = types.ModuleType("sampled")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(policy, module.__dict__)
    namespace = {}
    exec(its_test, namespace)
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


@pytest.mark.parametrize("module", ["balanced", "expert_choice", "switch", "top_2", "top_k"])
def test_every_policy_is_on_the_page(module):
    __import__(f"lingvo_moe.moe.gatings.{module}")
    names = [
        cls.__name__
        for cls in Gating.__subclasses__()
        if cls.__module__ == f"lingvo_moe.moe.gatings.{module}"
    ]
    assert names
    for name in names:
        assert f"| `{name}(" in (DOCS / "explain" / "routing.md").read_text()
