"""Functions of an MoE layer, compiled for a mesh of virtual devices.  B rows, T length, M model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from lingvo_moe.nn.nested_map import NestedMap


class MoeOnMesh:
    """The inputs of a layer, and programs of them.

    Attributes:
        gradients: names of the results of a function that returns outputs and all gradients:
            "outputs", "values" (those of the inputs) and the weights.
    """

    def __init__(self, weights: NestedMap, theta: NestedMap, values: Any, segments: Any):
        """Takes the layer's inputs.

        Args:
            weights: WeightSpecs of the layer.
            theta: their values.
            values: float32 [B, T, M].
            segments: int32 [B, T].
        """
        from lingvo_moe.runtimes.lowering import ArraySpec

        specs = dict(weights.flatten())
        of_weights = {n: ArraySpec(spec.shape, "float32", spec.dims) for n, spec in specs.items()}
        whole = ArraySpec(values.shape, "float32", "B..")
        batch = {"inputs": whole, "segments": ArraySpec(segments.shape, "int32", "B.")}
        self._args = [of_weights, batch]
        self._results = {"outputs": whole, "values": whole, **of_weights}
        self._number = ArraySpec((), "float32", "")
        self._data = [
            {name: np.asarray(value) for name, value in theta.flatten()},
            {"inputs": values, "segments": segments},
        ]
        self.gradients = tuple(self._results)

    def compile(self, function: Callable, results: Iterable[str], mesh: Mapping[str, int]) -> Any:
        """The compiled program.

        Args:
            function: (theta, values, segments) -> a dict of results.
            results: their names; other names than those of `gradients` are single numbers.
            mesh: sizes of the axes by name.
        """
        from lingvo_moe.runtimes.lowering import Layout, partitioned, shapes
        from lingvo_moe.sbp.types import Mesh

        def run(flat, batch):
            return function(NestedMap.unflatten(flat), batch.inputs, batch.segments)

        layout = Layout(Mesh(tuple(mesh), tuple(mesh.values())))
        specs = {name: self._results.get(name, self._number) for name in results}
        return partitioned(run, self._args, specs, layout).lower(*shapes(self._args)).compile()

    def run(self, program: Any, values: Any = None, segments: Any = None) -> dict[str, Any]:
        """The results of a program as lists; of other inputs, if given."""
        weights, batch = self._data
        if values is not None:
            batch = {"inputs": values, "segments": segments}
        return {name: np.asarray(x).tolist() for name, x in program(weights, batch).items()}
