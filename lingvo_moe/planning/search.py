"""Searches the best sharding of a model: the mesh, the axes of every letter, rematerialisation.

In a graph (sbp/graph.py) each operator has its own signature. Here the result must be sharding
rules of a model (sbp/params.py), so there is one choice for each letter: heads, hidden units and
the vocabulary are split along "model" or not; weights and slots at rest are split further or not.
Rows are split along "data" and "expert", experts along "expert". Two choices apply to the whole
model: whether layers are rematerialised, and whether gradients stay partial across micro-batches.
Other values cannot stay partial across layers, because the norm of the next branch needs the sum.

For one mesh a model is a few groups of blocks (planning/blocks.py) that share no letter, so each
choice of a group has its own cost, and the search adds up those of all combinations. Equal layers
are one block, so its time does not depend on the depth.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lingvo_moe.hardware.chips import Hardware
from lingvo_moe.planning.blocks import GROUPS, ModelBlocks
from lingvo_moe.planning.costs import (
    Estimate,
    count_costs,
    estimate,
    memory_of,
    transfer_seconds,
    work_seconds,
)
from lingvo_moe.sbp.params import DATA_AND_EXPERT, Rule, ShardingParams, ZeRO, on_mesh
from lingvo_moe.sbp.types import Mesh, Rules, axes_of, piece_shape, type_of
from lingvo_moe.tasks.params import TranslationParams

AXES = ("data", "expert", "model")
HAND = "the paper's annotation"
# The share of a device's memory that a strategy may need by our estimate. For models with experts
# libtpu needs up to 1.11 times the estimate.
ROOM = 0.9
_CUT = ("heads", "hidden", "vocabulary")  # the groups that "model" can split
_AT_REST = {"heads": "A", "vocabulary": "V", "rest": "e"}  # those that "expert" can split at rest
_ZERO_RULES = ZeRO().state_rules


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A strategy: mesh, sharding and rematerialisation."""

    mesh: Mesh  # the devices
    cut: tuple[str, ...] = ()  # the groups of blocks.GROUPS whose letters are split along "model"
    spread: tuple[str, ...] = ()  # those whose weights at rest are also split along "expert"
    zero: bool = False  # whether weights and slots at rest are split along "data"
    remat: bool = False  # whether layers are rematerialised in the backward pass
    # whether gradients stay partial from the first micro-batch to the last; None with a single
    # micro-batch
    late: bool | None = None

    @property
    def compute_rules(self) -> tuple[Rule, ...]:
        """The rules while computing."""
        letters = "".join(GROUPS[group] for group in self.cut)
        return (*DATA_AND_EXPERT, *((letter, ("model",)) for letter in letters))

    @property
    def state_rules(self) -> tuple[Rule, ...]:
        """The rules of weights and slots at rest where they differ from those of computing."""
        spread = (
            (_AT_REST[group], ("expert", "model") if group in self.cut else ("expert",))
            for group in self.spread
        )
        return (*(_ZERO_RULES if self.zero else ()), *spread)

    @property
    def rules(self) -> dict[str, tuple[str, ...]]:
        """Letter -> axes of the mesh, while computing."""
        return on_mesh(self.compute_rules, self.mesh)

    @property
    def stored(self) -> dict[str, tuple[str, ...]]:
        """The same for weights and slots at rest."""
        return self.rules | on_mesh(self.state_rules, self.mesh)

    @property
    def sharding(self) -> ShardingParams:
        """The strategy as sharding params; the default rules if they are equivalent."""
        rules, default = self.compute_rules, ShardingParams().rules
        if self.rules == on_mesh(default, self.mesh):
            rules = default
        sums: dict[str, Any] = {} if self.late is None else {"late_sums": self.late}
        if rules == default and self.state_rules == _ZERO_RULES:
            return ZeRO(**sums)
        return ShardingParams(rules=rules, state_rules=self.state_rules, **sums)


@dataclasses.dataclass(frozen=True)
class Priced:
    """A strategy and its cost."""

    strategy: Strategy  # the strategy
    estimate: Estimate  # of a step
    fits: bool  # whether it is within ROOM of a device's memory

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.estimate.step_seconds

    @property
    def bytes(self) -> float:
        """Of a device's memory."""
        return self.estimate.costs.memory.total

    @property
    def sent(self) -> float:
        """Bytes of all collectives of a device in a step."""
        return sum(self.estimate.costs.sent.values())


@dataclasses.dataclass(frozen=True)
class Found:
    """The result of a search."""

    # the fastest strategy that fits within the limit on bytes; if there is none, the strategy that
    # fits and sends least
    best: Priced
    fastest: Priced  # the fastest strategy that fits, without the limit
    max_sent: float  # the limit of `search_strategies`
    considered: int  # number of strategies on all meshes
    # name of a well-known strategy -> its cost, or why it is not possible
    alternatives: Mapping[str, Priced | str] = dataclasses.field(default_factory=dict)

    @property
    def within(self) -> bool:
        """Whether the best strategy is within the limit."""
        return _within(self.best.sent, self.max_sent)


def search_strategies(
    params: TranslationParams, hardware: Hardware, devices: int, max_sent: float = math.inf
) -> Found:
    """The fastest strategy within a device's memory and a limit on the bytes of all its collectives
    in a step. The model's own sharding and rematerialisation are ignored.

    Times are modelled, while bytes are counted exactly. A limit, such as the bytes of a known
    strategy, avoids gains that exist only in the time model. Raises ValueError: the model cannot be
    split over these devices, or no strategy fits.
    """
    space = Space(params, hardware)
    priced = sorted(
        itertools.chain.from_iterable(map(space.strategies, space.meshes(devices))),
        key=lambda one: one[:3],
    )
    if not priced:
        mesh = make_mesh(devices, 1, 1)
        raise ValueError(
            f"The model cannot be split over {devices} devices; on {mesh}: {space.unmet(mesh)}"
        )
    fitting = [one for one in priced if one.bytes <= ROOM * hardware.memory]
    if not fitting:
        least = min(priced, key=lambda one: one.bytes)
        raise ValueError(
            f"No strategy fits {devices} devices: the smallest one needs "
            f"{least.bytes / 1e9:.3g} GB per device, on mesh {least.strategy.mesh}; the limit is "
            f"{ROOM:.0%} of {hardware.memory / 1e9:.3g} GB. Use more devices, or set "
            f"train.micro_batches."
        )
    allowed = [one for one in fitting if _within(one.sent, max_sent)]
    allowed = allowed or sorted(fitting, key=lambda one: (one.sent, one.seconds))
    best = allowed[0].strategy
    return Found(
        best=price(params, best, hardware),
        fastest=price(params, fitting[0].strategy, hardware),
        max_sent=max_sent,
        considered=len(priced),
    )


def compare_strategies(
    params: TranslationParams, hardware: Hardware, devices: int, max_sent: float | None = None
) -> Found:
    """`search_strategies`, with the costs of well-known strategies. The limit is by default the
    bytes of the paper's annotation, or for a dense model those of data parallelism; there is none
    if data parallelism does not fit in memory. Raises ValueError: as `search_strategies`."""
    space = Space(params, hardware)
    numbers = divisors(devices)
    expert = max(
        n
        for n in numbers
        if n == 1 or (params.model.moe and not space.unmet(make_mesh(devices // n, n, 1)))
    )
    model = max(n for n in numbers if space.heads % n == 0)
    data = make_mesh(devices, 1, 1)
    # GShard splits experts and batch over all devices. Its T(96L) was a pipeline, which this
    # package does not have; data parallelism replaces it.
    named = {
        HAND: Strategy(make_mesh(devices // expert, expert, 1)),
        "data parallel": Strategy(data),
        "ZeRO": Strategy(data, zero=True),
        "tensor parallel": Strategy(
            make_mesh(devices // model, 1, model), _CUT if model > 1 else ()
        ),
    }
    alternatives = {name: _priced(space, strategy) for name, strategy in named.items()}
    if max_sent is None:
        hand = alternatives[HAND]
        max_sent = math.inf
        if isinstance(hand, Priced) and (hand.fits or params.model.moe):
            max_sent = hand.sent
    found = search_strategies(params, hardware, devices, max_sent)
    return dataclasses.replace(found, alternatives=alternatives)


def _priced(space: "Space", strategy: Strategy) -> Priced | str:
    """The cost of a strategy, or why it is not possible."""
    mesh = strategy.mesh
    if reason := space.unmet(mesh) or space.uneven(mesh, strategy.rules, strategy.stored):
        return reason
    # ZeRO() has no late sums, so it holds no whole gradient.
    late = not strategy.zero if space.blocks.micro_batches > 1 else None
    tried = [
        price(space.params, dataclasses.replace(strategy, remat=r, late=late), space.hardware)
        for r in (False, True)
    ]
    # Layers are rematerialised only if the strategy would not fit otherwise.
    return next((one for one in tried if one.fits), tried[-1])


def price(params: TranslationParams, strategy: Strategy, hardware: Hardware) -> Priced:
    """The cost of one strategy. Raises ValueError: the model cannot be split so."""
    dtype = params.activation_dtype
    wire = hardware.wire_bytes[dtype]
    costs = count_costs(apply_strategy(params, strategy), strategy.mesh, wire)
    fits = costs.memory.total <= ROOM * hardware.memory
    return Priced(strategy, estimate(costs, hardware, dtype), fits)


def apply_strategy(params: TranslationParams, strategy: Strategy) -> TranslationParams:
    """The params with this strategy; without rematerialisation scan is set to False."""
    scan = params.model.scan and strategy.remat
    remat = strategy.remat and (params.model.remat or not scan)
    model = dataclasses.replace(params.model, scan=scan, remat=remat)
    return dataclasses.replace(params, sharding=strategy.sharding, model=model)


class Quick(NamedTuple):
    """A strategy with its time, bytes sent and memory alone."""

    seconds: float
    sent: float
    bytes: float
    strategy: Strategy


class Space:
    """All strategies for one model on one kind of device."""

    def __init__(self, params: TranslationParams, hardware: Hardware):
        """Lists the model's blocks, once."""
        self.params, self.hardware = params, hardware
        self.blocks = ModelBlocks(params, hardware.wire_bytes[params.activation_dtype])
        sides = params.model, params.model.of_decoder()
        self.heads = math.gcd(*(side.attention_layer.key_heads for side in sides))

    def meshes(self, devices: int) -> Iterator[Mesh]:
        """The meshes over which rows and experts can be split; without axes of size 1."""
        for data, expert in itertools.product(divisors(devices), repeat=2):
            if devices % (data * expert) == 0 and (expert == 1 or self.params.model.moe):
                mesh = make_mesh(data, expert, devices // (data * expert))
                if not self.unmet(mesh):
                    yield mesh

    def unmet(self, mesh: Mesh) -> str:
        """Why rows, groups or experts cannot be split over a mesh; "" if they can."""
        try:
            self.params.check_mesh(mesh, on_mesh(DATA_AND_EXPERT, mesh))
        except ValueError as error:
            return str(error)
        return ""

    def uneven(
        self, mesh: Mesh, rules: Rules, stored: Rules, groups: Iterable[str] = GROUPS
    ) -> str:
        """Why heads, weights or slots of these groups do not split into equal pieces, or ""."""
        if self.heads % (pieces := mesh.size(axes_of("N", rules))):
            return (
                f"the numbers of heads must be multiples of {pieces}, because the mesh splits them "
                f"into so many pieces."
            )
        for group in groups:
            for dims, shape in (*self.blocks.weights[group], *self.blocks.slots[group]):
                try:
                    sbp = type_of(dims, shape, mesh, stored)
                    piece_shape(shape, sbp, mesh, dims, f"a weight of shape {shape}")
                except ValueError as error:
                    return str(error)
        return ""

    def strategies(self, mesh: Mesh) -> Iterator[Quick]:
        """All strategies on a mesh; those that do not use its axis "model" are left out."""
        zeros = (False, True) if mesh.sizes.get("data", 1) > 1 else (False,)
        lates = (False, True) if self.blocks.micro_batches > 1 else (None,)
        for zero, remat, late in itertools.product(zeros, (False, True), lates):
            groups = [
                [
                    self._cost(group, Strategy(mesh, cut, spread, zero, remat, late))
                    for cut, spread in self._choices(mesh, group, zero)
                ]
                for group in GROUPS
            ]
            for combination in itertools.product(*groups):
                alone, shares, seconds, sent = zip(*combination, strict=True)
                cut, spread = (sum((getattr(s, n) for s in alone), ()) for n in ("cut", "spread"))
                if "model" not in mesh.axes or cut:
                    strategy = Strategy(mesh, cut, spread, zero, remat, late)
                    memory = memory_of(self.blocks, shares, remat)
                    yield Quick(sum(seconds), sum(sent), memory.total, strategy)

    def _choices(self, mesh, group, zero):
        """(cut, spread) of a group alone; all pieces of its weights and slots must be equal."""
        cuts = [(), (group,)] if "model" in mesh.axes and group in _CUT else [()]
        # Experts are split along "expert" already.
        spreads = [(), (group,)] if "expert" in mesh.axes and group in _AT_REST else [()]
        for cut, spread in itertools.product(cuts, spreads):
            one = Strategy(mesh, cut, spread, zero)
            if not self.uneven(mesh, one.rules, one.stored, [group]):
                yield cut, spread

    def _cost(self, group, alone):
        """A strategy of one group, with its share, seconds and bytes sent."""
        mesh, hardware, dtype = alone.mesh, self.hardware, self.params.activation_dtype
        share = self.blocks.share(
            group, mesh, alone.rules, alone.stored, alone.remat, bool(alone.late)
        )
        seconds = sum(work_seconds(work, hardware, dtype) for work in share.work)
        seconds += sum(transfer_seconds(sent, mesh, hardware) for sent in share.transfers)
        return alone, share, seconds, sum(transfer.bytes for transfer in share.transfers)


def _within(sent: float, max_sent: float) -> bool:
    return sent <= max_sent * (1 + 1e-9)  # rounding depends on the order of a sum


def divisors(n: int) -> list[int]:
    """The divisors of n, ascending."""
    return [i for i in range(1, n + 1) if n % i == 0]


def make_mesh(data: int, expert: int, model: int) -> Mesh:
    """The mesh without axes of size 1; a single device has the axis "data"."""
    named = [(a, n) for a, n in zip(AXES, (data, expert, model), strict=True) if n > 1]
    return Mesh(*zip(*named or [("data", 1)], strict=True))
