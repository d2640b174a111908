"""The cost of weights for a device: bytes at rest and in use, gradients and their sums."""

import collections
import math
from collections.abc import Iterator

from lingvo_moe.planning.flow import Communication
from lingvo_moe.sbp.boxing import Step, direct
from lingvo_moe.sbp.types import B, Mesh, NdSbp, P, Rules, axes_of, type_of

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
                total += count * gathers[-1].bytes
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
        sent = collections.Counter[tuple[str, tuple[str, ...]]]()
        for (dims, shape), count in gradients.items():
            used = type_of(dims, shape, self.mesh, self.rules)
            pairs = zip(self.mesh.axes, used, strict=True)
            summands = NdSbp(P if one == B and axis in rows else one for axis, one in pairs)
            item = FLOAT32 if self.late else self._typed(dims)
            for step in direct(summands, used, shape, item, self.mesh):
                sent[step.kind, step.axes] += count * step.bytes
        for (dims, shape), count in weights.items():
            for step in self._gathers(dims, shape):
                sent[step.kind, step.axes] += count * step.bytes
        for (kind, axes), size in sent.items():
            times = 1 if self.late or kind == "all-gather" else self.blocks.micro_batches
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

    def _gathers(self, dims, shape) -> list[Step]:
        """From a weight's pieces at rest to those in use."""
        at_rest, used = (type_of(dims, shape, self.mesh, r) for r in (self.stored, self.rules))
        return [s for s in direct(at_rest, used, shape, self.wire, self.mesh) if s.kind]

    def _typed(self, dims) -> int:
        """Bytes of an element of a weight in use; routers' (letter e) stay float32."""
        return FLOAT32 if "e" in dims else self.item
