"""The blocks of a model, and the cost of each on a device, for given sharding rules and mesh.

B rows, L source length, T target length, N tokens, G groups, S tokens of a group, E experts,
C capacity, M model, H hidden, A all heads, V vocabulary, D devices.

Blocks that share a letter, with the weights of that letter, are a group: all attention, all
feed-forward layers and experts, embeddings and softmax, and the rest. For a given distribution of
tokens, the cost of one group does not depend on the sharding of the others.
"""

import collections
import dataclasses
import fractions
import itertools
from collections.abc import Iterator
from typing import Any

from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.planning import flow
from lingvo_moe.planning.flow import BlockCost, Communication, Computation
from lingvo_moe.planning.weights import FLOAT32, WeightCosts
from lingvo_moe.sbp.types import Mesh, Rules, axes_of
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.translation import TranslationTask

# Group -> the letters of its weights; the last group has all other weights.
GROUPS = {"heads": "AN", "hidden": "H", "vocabulary": "V", "rest": ""}
_OPTIMIZER_PASSES = 8  # reads and writes of weight, gradient and update, the latter twice


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Equal layers: one of them, their number, and lengths of a row and of a decoder's source."""

    layer: Any
    count: int
    length: int
    memory_length: int | None


class ModelBlocks:
    """The shapes of a model; equal layers and equal weights are stored once."""

    def __init__(self, params: TranslationParams, wire_bytes: int):
        """Lists the blocks of a model, without its sharding rules and rematerialisation; wire_bytes
        is of an element that is sent between, or kept for, matrix products."""
        self.params, self.wire = params, wire_bytes
        self.item = 2 if params.activation_dtype == "bfloat16" else 4
        self.micro_batches = params.train.micro_batches
        task = TranslationTask(params)
        weights = task.weights()
        self.parameters = sum(spec.size for _, spec in weights.flatten())
        self.weights = _by_group(weights, weights.flatten())
        self.trained = _by_group(weights, params.optimizer.split(weights, weights)[0].flatten())
        self.slots = _by_group(weights, params.optimizer.slots(weights).flatten())
        transformer, inputs = task.transformer, params.input
        self.kinds = [
            _Kind(layer, count, length, memory)
            for stack, length, memory in (
                (transformer.encoder, inputs.source_length, None),
                (transformer.decoder, inputs.target_length, inputs.source_length),
            )
            for layer, count in collections.Counter(stack.layers.values()).items()
        ]

    def share(
        self, group: str, mesh: Mesh, rules: Rules, stored: Rules, remat: bool, late: bool
    ) -> BlockCost:
        """The cost of a group of GROUPS for a device; rules and stored are letter -> axes while
        computing and at rest, late whether gradients stay partial from the first micro-batch to the
        last. Raises ValueError: as `type_of`."""
        return _Counter(self, mesh, rules, stored, remat, late).share(group)


def _by_group(weights, specs) -> dict[str, collections.Counter]:
    """Group -> number of specs with each dims and shape; paths of slots begin with a weight's."""
    found: dict[str, collections.Counter] = {name: collections.Counter() for name in GROUPS}
    group_of = {path: _group(spec) for path, spec in weights.flatten()}
    for path, spec in specs:
        owner = path if path in group_of else path.rpartition("/")[0]
        found[group_of[owner]][spec.dims, spec.shape] += 1
    return found


def _group(spec: WeightSpec) -> str:
    return next(
        name for name, letters in GROUPS.items() if not letters or set(letters) & set(spec.dims)
    )


def _outputs(network) -> int:
    """Hidden tensors that the backward pass needs: of a gated network both products and theirs."""
    return 3 if network.activation.gated else 1


class _Counter(WeightCosts):
    """Counts for one mesh and one set of rules."""

    def __init__(self, blocks, mesh, rules, stored, remat, late):
        super().__init__(blocks, mesh, rules, stored, late)
        self.remat, self.params, self.m = remat, blocks.params, blocks.params.model.model_dim
        rows, pieces = self.params.input.batch_size, self.params.target_vocab_size
        self.sizes = {"B": rows, "M": self.m, "V": pieces}
        # Forward 1, backward 2, and with rematerialisation the layers' forward pass once more.
        self.passes = 3 + remat

    def cut(self, letters: str) -> int:
        """The number of pieces of a tensor with these dimensions."""
        return self.mesh.size(tuple({a for x in letters for a in axes_of(x, self.rules)}))

    def tokens(self, length: int) -> float:
        """The number of tokens of a device, in rows of this length."""
        return self.params.input.batch_size / self.cut("B") * length

    def share(self, group):
        """The cost of a group of blocks."""
        computed = {"heads": self._heads, "hidden": self._hidden, "vocabulary": self._vocabulary}
        found = list(computed.get(group, tuple)())
        work = [one for one in found if isinstance(one, Computation)]
        transfers = [one for one in found if not isinstance(one, Computation)]
        weights, slots = self.blocks.weights[group], self.blocks.slots[group]
        trained = self.blocks.trained[group]
        updates = Computation(
            part="optimizer",
            flops=sum(
                count
                * self.params.optimizer.flops(WeightSpec(shape, Constant(0.0), dims))
                / self._pieces(dims, shape, self.stored)
                for (dims, shape), count in trained.items()
            ),
            bytes=_OPTIMIZER_PASSES * self.at_rest(trained),
        )
        kept = {"heads": self._kept_by_heads, "hidden": self._kept_by_hidden}.get(group)
        tokens = sum(kind.count * self.tokens(kind.length) for kind in self.blocks.kinds)
        return BlockCost(
            work=(*work, updates),
            transfers=(*transfers, *self.exchanges(weights, trained + self._again(group))),
            weights=self.at_rest(weights),
            optimizer=self.at_rest(slots),
            gradients=self.of_gradients(trained),
            in_use=self.in_use(weights),
            kept=tuple(kept(kind) if kept else 0.0 for kind in self.blocks.kinds),
            inputs=self.item * tokens * self.m if group == "rest" else 0.0,
            logits=2 * FLOAT32 * self._logits() if group == "vocabulary" else 0.0,
        )

    # ---- attention ----

    def _heads(self) -> Iterator[Computation | Communication]:
        for kind in self.blocks.kinds:
            yield self._attention(kind, kind.length)
            yield from self._attention_exchanges(kind)
            if kind.memory_length:
                yield self._attention(kind, kind.memory_length)
                yield from self._attention_exchanges(kind, kind.memory_length)

    def _attention(self, kind, keys):
        n, m, attention = self.tokens(kind.length), self.m, kind.layer.attention
        a, of_keys = (w / self.cut("A") for w in (attention.width, attention.key_width))
        key_tokens = n * keys / kind.length
        products = 2 * m * (2 * n * a + 2 * key_tokens * of_keys) + 2 * 2 * n * keys * a
        scores = n * kind.layer.params.num_heads / self.cut("N") * keys
        # Weights, inputs, outputs and heads once each; scores three times: product, softmax,
        # dropout.
        traffic = FLOAT32 * 2 * m * (a + of_keys)
        traffic += self.item * (2 * n * m + 2 * n * a + 2 * key_tokens * of_keys)
        traffic += FLOAT32 * 3 * scores
        return self._work("attention", kind.count, products, traffic)

    def _attention_exchanges(self, kind, memory_length=None):
        # Queries, keys and values of the same inputs are one product, whose gradient is one sum.
        sizes = self.sizes | {"T": kind.length, "A": kind.layer.attention.width}
        yield from self._product(kind.count, "BTM,MA->BTA", sizes)
        if memory_length:
            # All layers of a loop add to the gradient of memory. XLA sums it over devices once,
            # after the loop (WhileLoopAllReduceCodeMotion); until then it is partial.
            sums = 1 if self.params.model.scan and self.remat else kind.count
            of_memory = sizes | {"T": memory_length}
            yield from self._product(kind.count, "BTM,MA->BTA", of_memory, sums=sums)
        yield from self._product(kind.count, "BTA,AM->BTM", sizes)

    def _kept_by_heads(self, kind):
        n, heads = self.tokens(kind.length), kind.layer.params.num_heads / self.cut("N")
        attention, total = kind.layer.attention, 0.0
        width = 2 * (attention.width + attention.key_width) / self.cut("A")
        for keys in (kind.length, kind.memory_length):
            if keys:
                # The norm's output, queries, keys, values, mixed heads; probabilities and mask.
                total += self.wire * n * (self.m + width)
                total += n * heads * keys * (self.wire + 1)
                total += self.item * n * self.m  # the residual stream
        return total

    # ---- feed-forward layers and experts ----

    def _hidden(self) -> Iterator[Computation | Communication]:
        for kind in self.blocks.kinds:
            if kind.layer.is_moe:
                yield from self._moe(kind)
            if kind.layer.dense:
                yield from self._feed_forward(kind)

    def _feed_forward(self, kind):
        n, m, h = self.tokens(kind.length), self.m, kind.layer.dense.hidden_dim / self.cut("H")
        gated = kind.layer.dense.activation.gated
        matrices = 2 + gated
        flops = 2 * matrices * n * m * h
        # Each product's output is written and read; a gated network has two, and their product.
        traffic = FLOAT32 * matrices * m * h + self.item * n * (2 * m + (2 + 4 * gated) * h)
        yield self._work("feed_forward", kind.count, flops, traffic)
        rows = self.params.input.batch_size * kind.length
        sizes = self.sizes | {"R": rows, "H": kind.layer.dense.hidden_dim}
        yield from self._product(kind.count * (1 + gated), "RM,MH->RH", sizes)
        # Recomputation does not include the last sum of a block. The last layer of a scan's block
        # is its MoE layer, if there is one.
        ends = kind.layer.is_moe or not (self.params.model.scan and self.params.model.moe)
        yield from self._product(kind.count, "RH,HM->RM", sizes, again=not ends)

    def _shape(self, kind):
        """E, G, C, and the slots [E, G, C] of a device.

        Each micro-batch has all groups, of fewer tokens; G counts those of all micro-batches.
        """
        moe, inputs = kind.layer.feed_forward.params, self.params.input
        groups = moe.training.groups * self.blocks.micro_batches
        size = inputs.batch_size * kind.length // groups
        rows = moe.training.rows_computed(moe.num_experts, moe.gating.choices_per_token, size)
        return moe.num_experts, groups, rows // moe.num_experts, groups * rows / self.cut("Eg")

    def _moe(self, kind):
        n, m = self.tokens(kind.length), self.m
        experts, groups, capacity, slots = self._shape(kind)
        own, times = kind.layer.feed_forward, kind.count
        h = own.hidden_dim / self.cut("H")
        gated = own.experts.activation.gated
        matrices = 2 + gated
        weights = experts / self.cut("E") * matrices * m * h
        traffic = FLOAT32 * weights + self.item * slots * (2 * m + (2 + 4 * gated) * h)
        yield self._work("experts", times, 2 * matrices * slots * m * h, traffic)
        scores, one_hot = n * experts, n * experts * capacity
        einsum = own.params.training.one_hot
        # Scores: logits, softmax, top-k, two choices' queues one-hot and summed, statistics.
        gating = FLOAT32 * 8 * scores + einsum * self.wire * 2 * one_hot
        yield self._work("gating", times, 2 * scores * m + einsum * 2 * 2 * one_hot, gating)
        # Dispatch is linear in the tokens and its mask has no gradient: 1 product forward, 1 back.
        # Combine has both: 1 and 2. Rematerialised, both run forward again.
        products = times * (2 + 3 + 2 * self.remat)
        yield Computation(
            part="dispatch",
            flops=einsum * products * 2 * one_hot * m,
            bytes=products * (einsum * self.wire * one_hot + self.item * (slots + n) * m),
        )
        sizes = self.sizes | {"E": experts, "g": groups, "C": capacity, "H": own.hidden_dim}
        yield from self._product(times * (1 + gated), "EgCM,EMH->EgCH", sizes)
        yield from self._product(times, "EgCH,EHM->EgCM", sizes)
        policy = own.params.training
        if shared := policy.holding.shared(experts, self.cut("E")):
            # Their gradients are summed one by one (training.replicas).
            yield Communication(
                part="gradients",
                kind="all-reduce",
                bytes=times * FLOAT32 * shared * matrices * m * h,
                axes=axes_of("E", self.rules),
                count=times * shared,
            )
        # To the experts and back, forward and backward, and again if rematerialised.
        tokens = self.params.input.batch_size * kind.length // groups
        choices = own.params.gating.choices_per_token
        rows = policy.rows_sent(experts, choices, tokens, self.cut("E"))
        sizes |= {"C": fractions.Fraction(rows, experts)}
        numbers = policy.numbers_sent(choices)
        # Rows go there and back, numbers beside them only there; gradients the other way.
        for sent, item, ways in ((m, self.wire, 2), (numbers, FLOAT32, 1)):
            by = sizes | {"M": sent}, item, self.mesh, self.rules
            there = flow.forward("eGCM->EgCM", *by) if sent else ()
            yield from self._transfers("all_to_all", there, ways * (2 + self.remat) * times)

    def _kept_by_hidden(self, kind):
        n, m, dense = self.tokens(kind.length), self.m, kind.layer.dense
        total = 0.0
        if dense:
            total += self.wire * n * (m + _outputs(dense) * dense.hidden_dim / self.cut("H"))
        if not kind.layer.is_moe:
            return total + self.item * n * m
        own, (experts, _, capacity, slots) = kind.layer.feed_forward, self._shape(kind)
        hidden = _outputs(own.experts) * own.hidden_dim / self.cut("H")
        one_hot = n * experts * capacity * own.params.training.one_hot
        total += self.wire * (n * m + slots * (3 * m + hidden)) + FLOAT32 * 2 * n * experts
        return total + self.wire * 2 * one_hot

    # ---- embeddings and softmax ----

    def _vocabulary(self) -> Iterator[Computation | Communication]:
        inputs, m = self.params.input, self.m
        n = self.tokens(inputs.target_length)
        v = self.params.target_vocab_size / self.cut("V")
        # Logits are written, read for the normaliser, and their gradient written and read twice.
        yield Computation(
            part="softmax", flops=6 * n * m * v, bytes=FLOAT32 * (5 * n * v + 3 * m * v)
        )
        by = self.item, self.mesh, self.rules
        lengths = inputs.source_length, inputs.target_length
        source, target = (self.sizes | {"T": length} for length in lengths)
        softmax = flow.backward("BTM,VM->BTV", target, *by)
        lookups = (flow.forward("BTV,VM->BTM", sizes, *by) for sizes in (source, target))
        yield from self._transfers("tensor_parallel", [*softmax, *itertools.chain(*lookups)], 1)

    def _logits(self):
        n = self.tokens(self.params.input.target_length)
        return n * self.params.target_vocab_size / self.cut("V")

    # ---- other blocks, and functions for all ----

    def _work(self, part, times, flops, traffic):
        return Computation(
            part=part,
            flops=times * self.passes * flops,
            bytes=times * self.passes * traffic,
        )

    def _product(self, times, equation, sizes, again=True, sums=None):
        """The exchanges of a product of layers; backward ones occur `sums` times, None for once
        per product."""
        by = sizes, self.item, self.mesh, self.rules
        forwards = (1 + (self.remat and again)) * times
        yield from self._transfers("tensor_parallel", flow.forward(equation, *by), forwards)
        yield from self._transfers("tensor_parallel", flow.backward(equation, *by), sums or times)

    def _transfers(self, part, steps, times):
        count = times * self.blocks.micro_batches
        for step in (one for one in steps if one.kind):
            yield Communication(
                part=part, kind=step.kind, bytes=times * step.bytes, axes=step.axes, count=count
            )

    def _again(self, group) -> collections.Counter:
        """Each use of an embedding table, lookups and the softmax, has its own gradient.

        With late sums they are added before the sum over devices.
        """
        table = ("VM", (self.params.target_vocab_size, self.m))
        if group != "vocabulary" or self.late or table not in self.blocks.trained[group]:
            return collections.Counter()
        return collections.Counter({table: 1 + self.params.model.shared_embedding})
