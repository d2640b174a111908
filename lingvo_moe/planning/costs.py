"""Counts what one training step asks of one device: FLOPs, memory traffic, memory, collectives.

From shapes alone, by pencil and paper (GShard section 2.4 with all constants). B rows, L source
length, T target length, N tokens, G groups, S tokens of a group, E experts, C capacity, M model,
H hidden, A all heads, V vocabulary, D devices.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from lingvo_moe.core.layer import WeightSpec
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.gatings.base import expert_capacity
from lingvo_moe.layers.dispatch import Einsum
from lingvo_moe.sharding.annotations import Mesh, assignment
from lingvo_moe.tasks.translation import TranslationParams, TranslationTask

PARTS = (
    "attention",
    "feed_forward",
    "experts",
    "gating",
    "dispatch",
    "all_to_all",
    "tensor_parallel",
    "gradients",
    "softmax",
    "optimizer",
)
_FLOAT32 = 4
_OPTIMIZER_PASSES = 8  # reads and writes of weight, gradient and update, the latter twice


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Computation of one device in one step: matrix products' FLOPs, and bytes of its memory."""

    part: str
    flops: float = 0.0
    bytes: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transfer:
    """Communication of one device in one step.

    Attributes:
        part: which of PARTS it belongs to.
        kind: as in HLO: "all-to-all", "all-reduce", "all-gather".
        bytes: a device's share, all of them together.
        devices: how many take part.
        count: in how many collectives, before XLA combines any.
    """

    part: str
    kind: str
    bytes: float
    devices: int
    count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device by kind. Activations are an estimate of what lives at the worst moment;
    gradients are counted whole, though a compiler may free each as soon as it is used."""

    weights: float
    optimizer: float
    gradients: float
    activations: float

    @property
    def total(self) -> float:
        """The sum."""
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """All of the counts, per device and step but for parameters and tokens."""

    parameters: int
    tokens: int  # target tokens of a batch, the measure of 10^12
    devices: int
    work: tuple[Work, ...]
    transfers: tuple[Transfer, ...]
    memory: Memory

    @property
    def flops(self) -> float:
        """Of matrix products, one device, one step."""
        return sum(w.flops for w in self.work)


def count_costs(params: TranslationParams, mesh: Mesh, wire_bytes: int) -> Costs:
    """Counts a training step.

    Args:
        params: the model; its sharding rules say how it lies on the mesh.
        mesh: the devices.
        wire_bytes: of an element that travels between, or is kept for, matrix products.

    Raises:
        ValueError: as `assignment`.
    """
    counter = _Counter(params, mesh, wire_bytes)
    weights = counter.task.weights()
    slots = params.optimizer.slots(weights)
    stored = params.sharding.storage_rules(mesh)
    return Costs(
        parameters=sum(spec.size for _, spec in weights.flatten()),
        tokens=params.input.batch_size * params.input.target_length,
        devices=math.prod(mesh.shape),
        work=tuple(counter.work()),
        transfers=tuple(counter.transfers()),
        memory=Memory(
            weights=_stored_bytes(weights, mesh, stored),
            optimizer=_stored_bytes(slots, mesh, stored),
            gradients=_stored_bytes(weights, mesh, stored),
            activations=counter.activation_bytes(),
        ),
    )


def _pieces(spec: WeightSpec, mesh: Mesh, rules: Mapping) -> int:
    return mesh.size(
        tuple(a for axes in assignment(spec.dims, spec.shape, mesh, rules) for a in axes)
    )


def _stored_bytes(specs: NestedMap, mesh: Mesh, rules: Mapping) -> float:
    return sum(_FLOAT32 * spec.size / _pieces(spec, mesh, rules) for _, spec in specs.flatten())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Side:
    """The encoder or the decoder: its layers and tokens, and the length that a decoder looks at."""

    layers: tuple
    tokens: float  # of one device
    length: int  # of a row
    memory_length: int | None  # of the source row, for a decoder


class _Counter:
    def __init__(self, params, mesh, wire_bytes):
        self.params, self.mesh, self.wire = params, mesh, wire_bytes
        self.rules = params.sharding.compute_rules(mesh)
        self.task = TranslationTask(params)
        self.item = 2 if params.activation_dtype == "bfloat16" else 4
        model, inputs = params.model, params.input
        rows = inputs.batch_size / self.cut("B")
        transformer = self.task.transformer
        self.sides = (
            _Side(
                layers=tuple(transformer.encoder.layers.values()),
                tokens=rows * inputs.source_length,
                length=inputs.source_length,
                memory_length=None,
            ),
            _Side(
                layers=tuple(transformer.decoder.layers.values()),
                tokens=rows * inputs.target_length,
                length=inputs.target_length,
                memory_length=inputs.source_length,
            ),
        )
        self.heads = model.num_heads * model.head_dim / self.cut("A")
        self.hidden = model.hidden_dim / self.cut("H")
        # Forward 1, backward 2, and with rematerialisation the layers' forward pass once more.
        self.passes = 3 + model.remat

    def cut(self, letters: str) -> int:
        """Into how many pieces a tensor of these dimensions falls."""
        return self.mesh.size(tuple({a for letter in letters for a in self.rules.get(letter, ())}))

    def work(self) -> Iterator[Work]:
        """Everything that is computed."""
        for side in self.sides:
            for layer in side.layers:
                yield self._attention(side, side.length)
                if side.memory_length:
                    yield self._attention(side, side.memory_length)
                yield from self._moe(side, layer) if layer.is_moe else [self._feed_forward(side)]
        yield self._softmax()
        weights = _stored_bytes(
            self.task.weights(), self.mesh, self.params.sharding.storage_rules(self.mesh)
        )
        yield Work(part="optimizer", bytes=_OPTIMIZER_PASSES * weights)

    def _attention(self, side, keys):
        n, m, a = side.tokens, self.params.model.model_dim, self.heads
        key_tokens = n * keys / side.length
        products = 2 * m * a * (2 * n + 2 * key_tokens) + 2 * 2 * n * keys * a
        scores = n * self.params.model.num_heads / self.cut("N") * keys
        # Weights, inputs, outputs and heads once each; scores thrice: product, softmax, dropout.
        traffic = _FLOAT32 * 4 * m * a + self.item * (2 * n * m + 2 * (n + key_tokens) * a)
        traffic += _FLOAT32 * 3 * scores
        return Work(part="attention", flops=self.passes * products, bytes=self.passes * traffic)

    def _feed_forward(self, side):
        n, m, h = side.tokens, self.params.model.model_dim, self.hidden
        matrices = 3 if self.params.model.activation.gated else 2
        return Work(
            part="feed_forward",
            flops=self.passes * 2 * matrices * n * m * h,
            bytes=self.passes * (_FLOAT32 * matrices * m * h + self.item * n * (2 * m + 2 * h)),
        )

    def _shape(self, side, layer):
        """E, C, and how many slots [E, G, C] fall to a device."""
        moe = layer.feed_forward.params
        groups = moe.num_groups
        per_group = side.tokens * self.cut("B") / groups
        capacity = expert_capacity(moe.capacity_factor, int(per_group), moe.num_experts)
        slots = moe.num_experts * groups * capacity / self.cut("Eg")
        return moe.num_experts, capacity, slots

    def _moe(self, side, layer):
        n, m = side.tokens, self.params.model.model_dim
        experts, capacity, slots = self._shape(side, layer)
        own = layer.feed_forward
        h = own.hidden_dim / self.cut("H")
        matrices = 3 if own.experts.activation.gated else 2
        weights = experts / self.cut("E") * matrices * m * h
        yield Work(
            part="experts",
            flops=self.passes * 2 * matrices * slots * m * h,
            bytes=self.passes * (_FLOAT32 * weights + self.item * slots * (2 * m + 2 * h)),
        )
        scores, one_hot = n * experts, n * experts * capacity
        einsum = isinstance(own.params.dispatcher, Einsum)
        # Scores: logits, softmax, top-k, two choices' queues one-hot and summed, statistics.
        gating = _FLOAT32 * 8 * scores + einsum * self.wire * 2 * one_hot
        yield Work(
            part="gating",
            flops=self.passes * 2 * scores * m + einsum * self.passes * 2 * 2 * one_hot,
            bytes=self.passes * gating,
        )
        # Dispatch is linear in the tokens and its mask has no gradient: 1 product forward, 1 back.
        # Combine has both: 1 and 2. Rematerialised, both run forward again.
        products = 2 + 3 + 2 * self.params.model.remat
        yield Work(
            part="dispatch",
            flops=einsum * products * 2 * one_hot * m,
            bytes=products * (einsum * self.wire * one_hot + self.item * (slots + n) * m),
        )

    def _softmax(self):
        n, m = self.sides[1].tokens, self.params.model.model_dim
        v = self.params.target_vocab_size / self.cut("V")
        # Logits are written, read for the normaliser, and their gradient written and read twice.
        return Work(
            part="softmax", flops=3 * 2 * n * m * v, bytes=_FLOAT32 * (5 * n * v + 3 * m * v)
        )

    def transfers(self) -> Iterator[Transfer]:
        """Everything that is communicated."""
        micro, m = self.params.train.micro_batches, self.params.model.model_dim
        layers = [(side, layer) for side in self.sides for layer in side.layers]
        routed = [self._shape(side, layer)[2] for side, layer in layers if layer.is_moe]
        if routed and self.cut("E") > 1:
            # There and back, forward and backward, and again where rematerialised.
            trips = 4 + 2 * self.params.model.remat
            yield Transfer(
                part="all_to_all",
                kind="all-to-all",
                bytes=trips * self.wire * m * sum(routed),
                devices=self.cut("E"),
                count=trips * len(routed) * micro,
            )
        tensor = self.cut("AH")
        if tensor > 1:
            blocks = [
                side.tokens for side, _ in layers for _ in range(3 if side.memory_length else 2)
            ]
            yield Transfer(
                part="tensor_parallel",
                kind="all-reduce",
                bytes=(2 + self.params.model.remat) * self.item * m * sum(blocks),
                devices=tensor,
                count=(2 + self.params.model.remat) * len(blocks) * micro,
            )
        yield from self._gradient_transfers()

    def _gradient_transfers(self):
        rows = {axis for axes in map(self.rules.get, "BGR") if axes for axis in axes}
        by_group, gathered = {}, {}
        stored = self.params.sharding.storage_rules(self.mesh)
        for _, spec in self.task.weights().flatten():
            axes = assignment(spec.dims, spec.shape, self.mesh, self.rules)
            own = {a for group in axes for a in group}
            copies = self.mesh.size(tuple(rows - own))
            if copies > 1:
                size = _FLOAT32 * spec.size / self.mesh.size(tuple(own))
                by_group.setdefault(copies, []).append(size)
            extra = _pieces(spec, self.mesh, stored) // self.mesh.size(tuple(own))
            if extra > 1:
                size = _FLOAT32 * spec.size / self.mesh.size(tuple(own))
                gathered.setdefault(extra, []).append(size)
        for kind, groups in (("all-reduce", by_group), ("all-gather", gathered)):
            for devices, sizes in groups.items():
                yield Transfer(
                    part="gradients",
                    kind=kind,
                    bytes=sum(sizes),
                    devices=devices,
                    count=len(sizes),
                )

    def activation_bytes(self) -> float:
        """What is kept from the forward to the backward pass, and the largest working set."""
        micro, m = self.params.train.micro_batches, self.params.model.model_dim
        kept, inputs = [], 0.0
        for side in self.sides:
            for layer in side.layers:
                kept.append(self._kept(side, layer))
                inputs += self.item * side.tokens * m
        logits = 2 * _FLOAT32 * self.sides[1].tokens * self.params.target_vocab_size / self.cut("V")
        if self.params.model.remat:
            return (inputs + max(2 * max(kept), logits)) / micro
        return (inputs + sum(kept) + logits) / micro

    def _kept(self, side, layer):
        n, m, a = side.tokens, self.params.model.model_dim, self.heads
        heads = self.params.model.num_heads / self.cut("N")
        total = 0.0
        for keys in (side.length, side.memory_length):
            if keys:
                # The norm's output, queries, keys, values, mixed heads; probabilities and mask.
                total += self.wire * n * (m + 4 * a) + n * heads * keys * (self.wire + 1)
                total += self.item * n * m  # the residual stream
        if not layer.is_moe:
            return total + self.wire * n * (m + self.hidden) + self.item * n * m
        experts, capacity, slots = self._shape(side, layer)
        hidden = layer.feed_forward.hidden_dim / self.cut("H")
        one_hot = n * experts * capacity * isinstance(layer.feed_forward.params.dispatcher, Einsum)
        total += self.wire * (n * m + slots * (3 * m + hidden)) + _FLOAT32 * 2 * n * experts
        return total + self.wire * 2 * one_hot
