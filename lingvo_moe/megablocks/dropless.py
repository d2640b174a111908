"""Dropless experts as block-sparse products, on one device or many (MegaBlocks).

Gale et al. 2022, MegaBlocks, arXiv 2211.15841.

X sources, the devices with tokens, with N tokens each; K choices, M model, H hidden; D devices that
the E experts are split over, L = E / D; A places along the mesh axis of data; C room of the buffer
from a source to a device; T tokens that a device receives or has; R row blocks of B rows.
In `dims` as elsewhere: G sources; g the same, and the places, while experts are split; E experts
and their devices; e devices not split; r rows of experts.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_moe.config.fields import PositiveInt
from lingvo_moe.megablocks.block_sparse import block_diagonal, sampled, summed_by_row
from lingvo_moe.megablocks.laddered import Laddered, least_rung
from lingvo_moe.moe.dispatch import (
    AnyShape,
    Dispatched,
    by_expert,
    combine,
    expert_or_none,
    inverse,
    permute,
)
from lingvo_moe.moe.feed_forward import Products
from lingvo_moe.moe.gatings.queues import queue_positions
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.smart_cond import size_of
from lingvo_moe.sbp.annotations import annotate, num_pieces
from lingvo_moe.sbp.copies import annotate_weight
from lingvo_moe.sbp.gshard import manual

_LARGEST_BLOCK = 128  # the paper's, section 5.1.2
_SMALLEST_BLOCK = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropless(Laddered, AnyShape):
    """Experts without a capacity, as products with block-sparse matrices.

    A device sorts choices by expert, and pads the rows of each expert with zeros to whole blocks.
    All its experts are then one block-diagonal product (the paper's figure 6). Shapes are static,
    while the time follows the blocks in use, so it suits XLA. It runs on TensorFlow's executor too,
    where `Ragged` needs no padding.

    If a mesh splits the experts, a token is sent once to each other device that has experts for it,
    with its choices and their weights; that device returns the weighted sum of its experts. Each
    pair of devices has one buffer, which is as large as the busiest pair needs (see `Laddered`).
    Pairs have much more even loads than experts. Every choice is computed.

    Attributes:
        block_size: B; None for the largest power of two from 8 to 128 that is at most a quarter of
            an expert's choices at balance, N·K/L. Padding then adds about an eighth to the rows.
        kept: the number of devices whose experts a token may use, as of a `NodeLimited` with a node
            for each device (DeepSeek-V3, arXiv 2412.19437, section 3.2.2): buffers begin with room
            for so many copies of a token. None for K.

    Raises:
        ValueError: block_size or kept is less than 1; see also Laddered.
    """

    block_size: PositiveInt | None = None
    kept: PositiveInt | None = None

    def for_xla(self, groups):
        """See AnyShape; the result has room for any load."""
        return dataclasses.replace(self, groups=groups, rung=None)

    def rows_sent(self, num_experts, choices, group_size, devices):
        """See Dispatcher; on the lowest rung."""
        return devices * self._room(choices, group_size, devices)[0]

    def numbers_sent(self, choices):
        """See Dispatcher; the experts of the token and their weights."""
        return 2 * choices

    def _room(self, choices, tokens, devices):
        """Rows from a device to another on each rung; a token is sent to a device once."""
        copies = min(choices, self.kept or choices)
        return self.room(tokens * min(1.0, copies / devices), tokens)

    def dispatch(self, inputs, routing, capacity, experts):
        """See Laddered; the statistics also hold `device_rows`, float32 [], the most rows that a
        device computes, padding included."""
        del capacity
        choices, devices = routing.expert.shape[-1], num_pieces("E")
        held = experts.num_experts // devices
        expert = expert_or_none(routing, experts.num_experts)
        own = [
            annotate(tf.reshape(x, [num_pieces("G"), -1, x.shape[-1]]), "GSM")
            for x in (inputs, expert, routing.weight)
        ]
        size = size_of(own[0], 1)
        if devices > 1:
            room = self._room(choices, size, devices)
            rows = self.room(size * choices, size * choices * devices)
            exchange = _Exchange.plan(own[1], devices, held, self.of_rung(room))
            (tokens, expert, weight), most = exchange.send(*own), self.of_rung(rows)
        else:
            tokens, expert, weight = (annotate(x[None], "Eg..") for x in own)
            exchange, most = None, size * choices
        block = self.block_size or _block_size(size * choices, held)
        blocks = in_blocks(expert, held, block, -(-most // block) + held)
        outputs = experts.by_products(blocks.permute(tokens), blocks.products())
        sums = blocks.combine(outputs, weight)
        outputs = exchange.back(sums) if exchange else sums
        stats = NestedMap(
            rung=tf.constant(0.0),
            lost=tf.cast(_count(routing.dispatched) - _count(blocks.computed), tf.float32),
            device_rows=tf.cast(
                block * tf.reduce_max(tf.reduce_sum(blocks.row_blocks, axis=-1)), tf.float32
            ),
        )
        if exchange:
            busiest = least_rung(rows, tf.reduce_max(blocks.choices))
            stats.rung = tf.maximum(least_rung(room, exchange.most), busiest)
        return Dispatched(tf.reshape(outputs, tf.shape(inputs)), stats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Exchange:
    """Tokens to other devices and back, in a buffer for each pair of a source and a device.

    Attributes:
        devices, held, room: D, L, C.
        slot: int32 [X, N, K], the place in [D, C] where a choice sends its token; D · C if none, or
            on its own device. Of a token's choices on a device the first sends it.
        most: int32 [], the number of tokens of the busiest pair.
    """

    devices: int
    held: int
    room: int
    slot: tf.Tensor
    most: tf.Tensor

    @classmethod
    def plan(cls, expert: tf.Tensor, devices: int, held: int, room: int) -> "_Exchange":
        """The exchange for the experts int32 [X, N, K] of tokens, E for none."""
        device = expert // held
        own = device == (tf.range(expert.shape[0]) % devices)[:, None, None]
        first = _first_of_device(device) & (device < devices) & ~own
        position = queue_positions(device, first, devices)
        sends = first & (position < room)
        return cls(
            devices=devices,
            held=held,
            room=room,
            slot=tf.where(sends, device * room + position, devices * room),
            most=tf.reduce_max(tf.where(first, position + 1, 0)),
        )

    def send(self, tokens, expert, weight):
        """What a device receives and has: tokens [D, A, T, M], and their choices [D, A, T, K].

        Experts are numbered from the device's first one, with L for those of other devices.
        """
        # As one float32 tensor, with 0 for no expert, as in empty places.
        about = tf.concat([tf.cast(expert + 1, tf.float32), weight], axis=-1)

        def fill(tokens, about, slot):
            slot, choice = self._slots(slot)
            sent = (permute(tf.squeeze(x, 0), slot, choice) for x in (tokens, about))
            return [tf.reshape(x, [self.devices, 1, self.room, x.shape[-1]]) for x in sent]

        sent = manual(fill, [tokens, about, self.slot], ["GSM", "GSK", "GSK"], ["eGCM", "eGCK"])
        tokens, about = map(self._beside, sent, (tokens, about))
        expert, weight = tf.split(about, 2, axis=-1)
        expert = tf.cast(expert, tf.int32) - 1
        expert -= self.held * tf.range(self.devices)[:, None, None, None]
        here = (expert >= 0) & (expert < self.held)
        return tokens, tf.where(here, expert, self.held), weight

    def back(self, sums):
        """The sums [X, N, M] over devices of the devices' sums [D, A, T, M]."""
        arrived = self.devices * self.room
        own = tf.transpose(sums[:, :, arrived:], [1, 0, 2, 3])
        own = annotate(tf.reshape(own, [-1, *own.shape[2:]]), "GSM")
        sums = tf.reshape(sums[:, :, :arrived], [self.devices, -1, self.room, sums.shape[-1]])
        sums = annotate(annotate(sums, "EgCM"), "eGCM")

        def collect(sums, slot):
            slot, choice = self._slots(slot)
            rows = tf.reshape(sums, [-1, sums.shape[-1]])
            return combine(rows, tf.ones(slot.shape), slot, choice)[None]

        return own + manual(collect, [sums, self.slot], ["eGCM", "GSK"], "GSM")

    def _beside(self, sent, own):
        """[D, A, T, ·]: what was sent [D, X, C, ·], after it each device's own [X, N, ·]."""
        size = sent.shape[-1]
        sent = annotate(sent, "EgCM")
        own = tf.reshape(own, [-1, self.devices, *own.shape[1:]])
        own = annotate(tf.transpose(own, [1, 0, 2, 3]), "Eg..")
        sent = tf.reshape(sent, [self.devices, own.shape[1], -1, size])
        return annotate(tf.concat([sent, own], axis=2), "Eg..")

    def _slots(self, slot):
        """The slots [N, K] of a source, and the choice in each."""
        slot = tf.squeeze(slot, 0)
        return slot, inverse(slot, self.devices * self.room)


class Blocks(NamedTuple):
    """Choices of each device in blocks of rows, each block for one expert.

    Attributes:
        slot: int32 [D, A, T, K], the row of each choice; R · B for none.
        choice: int32 [D, A, R · B], the choice (token · K + k) in each row; T · K for none.
        choices: int32 [D, A], the number of choices.
        row_blocks: int32 [D, A, L], the number of blocks of each expert, at most R together.
        size: B.
    """

    slot: tf.Tensor
    choice: tf.Tensor
    choices: tf.Tensor
    row_blocks: tf.Tensor
    size: int

    @property
    def computed(self) -> tf.Tensor:
        """bool [D, A, T, K]: the choices that have a row."""
        return self.slot < size_of(self.choice, 2)

    def permute(self, tokens: tf.Tensor) -> tf.Tensor:
        """Tokens [D, A, T, M] as rows [D, A · R · B, M]."""

        def run(tokens, slot, choice):
            return permute(*map(_of_device, (tokens, slot, choice)))[None]

        return manual(run, [tokens, self.slot, self.choice], ["Eg.M", "Eg.K", "Eg."], "ErM")

    def combine(self, rows: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Weighted sums [D, A, T, M] of rows [D, A · R · B, M]; weight float32 [D, A, T, K]."""

        def run(rows, weight, slot, choice):
            given = (_of_device(x) for x in (weight, slot, choice))
            return combine(tf.squeeze(rows, 0), *given)[None, None]

        given = [rows, weight, self.slot, self.choice]
        return manual(run, given, ["ErM", "Eg.K", "Eg.K", "Eg."], "Eg.M")

    def products(self) -> Products:
        """The experts' products, of rows [D, A · R · B, M] and [D, A · R · B, H].

        With hidden units on several devices, rows have a copy for each, and outputs a summand.
        """
        pieces = num_pieces("H")

        def into(rows, weight):
            shape = [pieces, *(size_of(rows, axis) for axis in range(3))]
            copied = annotate(tf.broadcast_to(rows, shape), "HErM")
            return self._on_blocks(sampled, copied, "HErM", weight, "EMH", "ErH")

        def out_of(hidden, weight):
            summands = self._on_blocks(summed_by_row, hidden, "ErH", weight, "EHM", "HErM")
            return annotate(tf.reduce_sum(summands, axis=0), "ErM")

        def add(dims):
            def to_blocks(blocks, bias, topology):  # 0 for blocks not in use
                return blocks + tf.gather(tf.pad(bias, [[0, 1], [0, 0]]), topology.column)[:, None]

            of = dims[-1]
            return lambda rows, bias: self._on_blocks(to_blocks, rows, dims, bias, f"E{of}", dims)

        return Products(into, out_of, add("ErH"), add("ErM"))

    def _on_blocks(self, function, rows, dims, weight, weight_dims, result_dims):
        """function(blocks of rows, weight, topology) on each device, as rows."""

        def run(rows, weight, row_blocks):
            blocks = tf.reshape(rows, [-1, self.size, rows.shape[-1]])
            topology = block_diagonal(_of_device(row_blocks), size_of(blocks, 0))
            results = function(blocks, tf.squeeze(weight, 0), topology)
            ones = [1] * (len(result_dims) - 2)
            return tf.reshape(results, [*ones, size_of(blocks, 0) * self.size, results.shape[-1]])

        if weight.shape.rank == len(weight_dims):
            weight = tf.broadcast_to(weight, [num_pieces("g"), *weight.shape])
        weight = annotate_weight(weight, weight_dims)
        return manual(
            run, [rows, weight, self.row_blocks], [dims, f"g{weight_dims}", "Eg."], result_dims
        )


def in_blocks(expert: tf.Tensor, num_experts: int, block_size: int, num_rows: int) -> Blocks:
    """Sorts the choices of each device by expert and pads each expert's run to whole blocks.

    Args:
        expert: int32 [D, A, T, K]; L for none.
        num_experts: L.
        block_size: B.
        num_rows: R; choices beyond it have no row.
    """

    def run(expert):
        expert = _of_device(expert)
        order, counts = by_expert(expert, num_experts)
        ends = tf.minimum(tf.cumsum(-(-counts // block_size)), num_rows)
        row_blocks = ends - tf.concat([[0], ends[:-1]], axis=0)
        row = tf.range(num_rows * block_size)
        at = tf.searchsorted(ends, row // block_size, side="right")  # expert; L: not in use
        place = row - tf.gather(_pad(block_size * (ends - row_blocks)), at)
        sorted_choice = tf.gather(_pad(tf.cumsum(counts, exclusive=True)), at) + place
        filled = place < tf.gather(_pad(counts), at)
        choice = tf.gather(order, tf.where(filled, sorted_choice, 0))
        choice = tf.where(filled, choice, tf.size(order))
        slot = tf.reshape(inverse(choice, tf.size(order)), tf.shape(expert))
        return [x[None, None] for x in (slot, choice, tf.reduce_sum(counts), row_blocks)]

    slot, choice, choices, row_blocks = manual(
        run, [expert], ["Eg.K"], ["Eg.K", "Eg.", "Eg", "Eg."]
    )
    return Blocks(slot, choice, choices, row_blocks, block_size)


def _first_of_device(device):
    """bool [..., K], the choices of a token that are its first on their device."""
    same = device[..., :, None] == device[..., None, :]
    return ~tf.reduce_any(same & np.tri(device.shape[-1], k=-1, dtype=bool), axis=-1)


def _of_device(tensor):
    """[1, 1, …], the piece of a device, without the first dimensions."""
    return tf.squeeze(tensor, [0, 1])


def _pad(by_expert):
    return tf.pad(by_expert, [[0, 1]])


def _count(choices: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(choices, tf.int32))


def _block_size(choices: int | tf.Tensor, num_experts: int) -> int:
    if tf.is_tensor(choices):
        return _LARGEST_BLOCK
    quarter = max(choices // (4 * num_experts), _SMALLEST_BLOCK)
    return min(1 << (quarter.bit_length() - 1), _LARGEST_BLOCK)
