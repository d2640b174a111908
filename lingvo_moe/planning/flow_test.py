import json

import numpy as np
import pytest

from lingvo_moe.planning import flow
from lingvo_moe.sbp.graph import Choice, Graph, Move, Plan
from lingvo_moe.sbp.params import ShardingParams
from lingvo_moe.sbp.types import Mesh, type_of
from lingvo_moe.testing.devices import run_on

MESH = Mesh(("data", "expert", "model"), (2, 2, 2))
RULES = ShardingParams().compute_rules(MESH)
CUT = {"M": ("model",)}
BOTH = {"H": ("data", "model")}
SIZES = {"B": 16, "T": 4, "R": 64, "M": 8, "H": 32, "V": 24} | dict.fromkeys("Ee", 4)
SIZES |= {"G": 8, "g": 8, "C": 2}
MODEL, EXPERT = ("model",), ("expert",)

# Equation, rules; kind, axes and bytes of the collective, by hand, if there is one. A device has a
# quarter of the rows B and R, and half of the groups g.
PRODUCTS = [
    ("RM,MH->RH", RULES, []),  # columns, then rows: one sum each way
    ("RH,HM->RM", RULES, [("all-reduce", MODEL, 4 * 64 * 8 // 4)]),
    ("RM,HM->RH", RULES, []),
    ("RH,MH->RM", RULES, [("all-reduce", MODEL, 4 * 64 * 8 // 4)]),
    ("RM,MH->RH", CUT, [("all-reduce", MODEL, 4 * 64 * 32)]),  # in the middle, where it is wide
    ("RH,HM->RM", CUT, []),
    ("BTV,VM->BTM", RULES, [("all-reduce", MODEL, 4 * 16 * 4 * 8 // 4)]),  # a table in pieces
    ("BTV,VM->BTM", {"B": ("data",)}, []),
    ("eGCM->EgCM", RULES, [("all-to-all", EXPERT, 4 * 4 * 8 * 2 * 8 // 4)]),
    ("RH,HM->RM", BOTH, [("all-reduce", ("data", "model"), 4 * 64 * 8)]),
]


@pytest.mark.parametrize(("equation", "rules", "wanted"), PRODUCTS)
def test_a_product_needs_at_most_one_collective(equation, rules, wanted):
    steps = flow.forward(equation, SIZES, 4, MESH, rules)
    assert [(step.kind, step.axes, step.bytes) for step in steps if step.kind] == wanted


@pytest.mark.slow
def test_what_is_planned_runs():
    """On eight devices the products have their numbers, and the planned collectives alone."""
    for (*_, wanted), (error, sent) in zip(PRODUCTS, run_on(8, __file__), strict=True):
        assert error < 1e-5
        assert sent == [[kind, size] for kind, _, size in wanted]


def plan_of(equation, rules):
    """A product as the planner splits it, and what it does with the result."""
    *terms, result = equation.replace("->", ",").split(",")
    graph, types = Graph(), [type_of(d, (None,) * len(d), MESH, rules) for d in terms]
    steps = flow.forward(equation, SIZES, 4, MESH, rules)
    target = type_of(result, (None,) * len(result), MESH, rules)
    source = steps[0].source if steps else target
    names = [graph.input(f"x{i}", [SIZES[d] for d in term]) for i, term in enumerate(terms)]
    product = graph.einsum(equation.lower(), *names)
    output = graph.nodes[graph.output(product)]
    inputs = [Choice(graph.nodes[n], (), one) for n, one in zip(names, types, strict=True)]
    stay = tuple(Move(n, one, one, ()) for n, one in zip(names, types, strict=True))
    last = Choice(output, (Move(product, source, target, steps),), target)
    return Plan(MESH, (*inputs, Choice(graph.nodes[product], stay, source), last), 0.0, True)


def main():
    """Prints for each of PRODUCTS the largest error, and kind and bytes of the collectives."""
    from lingvo_moe.runtimes import hlo
    from lingvo_moe.sbp.run import program

    found, random = [], np.random.default_rng(0)
    for equation, rules, _ in PRODUCTS:
        plan = plan_of(equation, rules)
        shapes = [choice.node.shape for choice in plan.choices if choice.node.operator is None]
        given = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
        run = program(plan)
        sent = [(c.kind, c.bytes) for c in hlo.collectives(run.lower(*given).compile().as_text())]
        whole = np.einsum(equation.lower(), *given)
        error = np.abs(np.asarray(run(*given)[0]) - whole).max() / np.abs(whole).max()
        found.append((float(error), sent))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
