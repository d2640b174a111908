"""The cost of weights for a device: bytes at rest and in use, gradients and their sums."""

import collections
import math
from collections.abc import Iterator

from lingvo_moe.planning.flow import Communication
from lingvo_moe.sbp.types import B, Mesh, NdSbp, Rules, Split, axes_of, axes_with, type_of

FLOAT32 = 4

Specs = collections.Counter  # (dims, shape) -> number of weights


class WeightCosts:
    """The cost of weights on a mesh.

    Attributes:
        blocks: the ModelBlocks.
        mesh: the devices.
        rules, stored: while computing, and for weights and slots at rest, between steps.
        item, wire: bytes of an element of a weight in use, and of one that is sent.
        late: whether gradients are summed over devices once, after the last micro-batch.
    """

    def __init__(self, blocks, mesh: Mesh, rules: Rules, stored: Rules, late: bool):
        self.blocks, self.mesh, self.rules, self.stored = blocks, mesh, rules, stored
        self.wire, self.item = blocks.wire, blocks.item
        self.late = late and blocks.micro_batches > 1

    def at_rest(self, specs: Specs) -> float:
        """Bytes of weights or slots between steps."""
        return self._bytes(specs, self.stored)

    def in_use(self, weights: Specs) -> float:
        """Bytes of gathered or cast weights, kept from the forward to the backward pass.

        Gathered weights count in full. Weights that are only cast count half: memory is at its
        peak when the encoder's gradients are computed, and the copies of the decoder are free then.
        """
        total = 0.0
        for (dims, shape), count in weights.items():
            if gathers := self._gathers(dims, shape):
                total += count * gathers[-1][1]
            elif self._typed(dims) < FLOAT32:
                pieces = self._pieces(dims, shape, self.rules)
                total += count * self._typed(dims) * math.prod(shape) / pieces / 2
        return total

    def of_gradients(self, weights: Specs) -> float:
        """Gradients of a micro-batch in the compute dtype, and their sum in float32."""
        many = self.blocks.micro_batches > 1
        where = self.rules if many and self.late else self.stored
        one = sum(
            count * self._typed(dims) * math.prod(shape) / self._pieces(dims, shape, where)
            for (dims, shape), count in weights.items()
        )
        return one + many * self._bytes(weights, where)

    def exchanges(self, weights: Specs, gradients: Specs) -> Iterator[Communication]:
        """Sums of gradients over devices with different rows, and AllGathers of weights.

        The dtype is that of the weight in use, or of the sum over micro-batches. Each of
        `gradients` counts once for every sum over devices in a micro-batch.
        """
        rows = {axis for letter in "BGR" for axis in axes_of(letter, self.rules)}
        summed: dict[tuple[str, ...], float] = collections.defaultdict(float)
        gathered: dict[tuple[str, ...], float] = collections.defaultdict(float)
        for (dims, shape), count in gradients.items():
            whole = axes_with(B, type_of(dims, shape, self.mesh, self.rules), self.mesh)
            axes = tuple(axis for axis in whole if axis in rows)
            if self.mesh.size(axes) > 1:
                item = FLOAT32 if self.late else self._typed(dims)
                pieces = self._pieces(dims, shape, self.rules)
                summed[axes] += count * item * math.prod(shape) / pieces
        for (dims, shape), count in weights.items():
            for axes, size in self._gathers(dims, shape):
                gathered[axes] += count * size
        for kind, times, sizes in (
            ("all-reduce", 1 if self.late else self.blocks.micro_batches, summed),
            ("all-gather", 1, gathered),
        ):
            for axes, size in sizes.items():
                yield Communication(
                    part="gradients", kind=kind, bytes=times * size, axes=axes, count=times
                )

    def _bytes(self, specs, rules) -> float:
        return sum(
            count * FLOAT32 * math.prod(shape) / self._pieces(dims, shape, rules)
            for (dims, shape), count in specs.items()
        )

    def _pieces(self, dims, shape, rules) -> int:
        sbp = type_of(dims, shape, self.mesh, rules)
        return math.prod(n for n, one in zip(self.mesh.shape, sbp, strict=True) if one != B)

    def _gathers(self, dims, shape) -> list[tuple[tuple[str, ...], float]]:
        """Axes and bytes of each AllGather from a weight's pieces at rest to those in use, the last
        dimension first.
        """
        used = type_of(dims, shape, self.mesh, self.rules)
        at_rest = type_of(dims, shape, self.mesh, self.stored)
        both = list(zip(self.mesh.shape, at_rest, used, strict=True))
        pieces = math.prod(n for n, *types in both if types != [B, B])
        gathered = NdSbp(B if before == after else before for _, before, after in both)
        size, found = self.wire * math.prod(shape) / pieces, []
        for dim in reversed(range(len(dims))):
            axes = axes_with(Split(dim), gathered, self.mesh)
            if self.mesh.size(axes) > 1:
                size *= self.mesh.size(axes)
                found.append((axes, size))
        return found

    def _typed(self, dims) -> int:
        """Bytes of an element of a weight in use; routers' (letter e) stay float32."""
        return FLOAT32 if "e" in dims else self.item
