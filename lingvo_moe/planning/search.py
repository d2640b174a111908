"""Searches the best sharding of a model: the mesh, the axes of every letter, rematerialisation.

Yuan et al. 2021 (arXiv 2110.15032) choose a signature for each operator. Here the result must be
sharding rules of a model (sharding/params.py), so there is one choice for each letter: heads,
hidden units and the vocabulary are split along "model" or not; weights and slots at rest are split
further or not. Rows are split along "data" and "expert", experts along "expert". Two choices apply
to the whole model: whether layers are rematerialised, and whether gradients stay partial across
micro-batches. Other values cannot stay partial across layers, because the norm of the next branch
needs the sum.

For one mesh, with or without rematerialisation, a model is a few groups of blocks
(planning/blocks.py) that share no letter, so each choice of a group has its own cost. The search
adds up the costs of all combinations. Equal layers are one block, so the search time does not
depend on the depth. The signatures (planning/flow.py) give the sums, such as the single sum of a
feed-forward layer that is split by columns, then rows.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from lingvo_moe.hardware.chips import Hardware
from lingvo_moe.layers.dispatch import Ragged, one_device
from lingvo_moe.layers.dropless import Dropless
from lingvo_moe.planning.blocks import GROUPS, ModelBlocks
from lingvo_moe.planning.costs import count_costs, memory_of
from lingvo_moe.planning.estimate import Estimate, estimate, transfer_seconds, work_seconds
from lingvo_moe.planning.share import BlockCost
from lingvo_moe.sharding.annotations import Mesh, assignment
from lingvo_moe.sharding.params import DATA_AND_EXPERT, Rule, ShardingParams, ZeRO, on_mesh
from lingvo_moe.tasks.params import TranslationParams

AXES = ("data", "expert", "model")
_ZERO_RULES = ZeRO().state_rules
# The share of a device's memory that a strategy may need by our estimate. For models with experts
# libtpu needs up to 1.11 times the estimate.
ROOM = 0.9


@dataclasses.dataclass(frozen=True)
class BlockChoice:
    """The choice for one group of blocks.

    Attributes:
        group: its name, of blocks.GROUPS.
        cut: whether its letters are split along "model".
        spread: whether its weights at rest are also split along "expert".
    """

    group: str
    cut: bool
    spread: bool


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A strategy: mesh, sharding and rematerialisation.

    Attributes:
        mesh: the devices.
        choices: one for each group.
        zero: whether weights and slots at rest are split along "data".
        remat: whether layers are rematerialised in the backward pass.
        late: whether gradients stay partial from the first micro-batch to the last; None with a
            single micro-batch.
    """

    mesh: Mesh
    choices: tuple[BlockChoice, ...]
    zero: bool = False
    remat: bool = False
    late: bool | None = None

    @property
    def state_rules(self) -> tuple[Rule, ...]:
        """The rules of weights and slots at rest where they differ from those of computing."""
        return _state_rules(self.choices, self.zero)

    @property
    def rules(self) -> dict[str, tuple[str, ...]]:
        """Letter -> axes of the mesh, while computing."""
        return on_mesh(_rules(self.choices), self.mesh)

    @property
    def stored(self) -> dict[str, tuple[str, ...]]:
        """The same for weights and slots at rest."""
        return self.rules | on_mesh(self.state_rules, self.mesh)

    @property
    def sharding(self) -> ShardingParams:
        """The strategy as sharding params; the default rules if they are equivalent."""
        rules, state, default = _rules(self.choices), self.state_rules, ShardingParams()
        if self.rules == on_mesh(default.rules, self.mesh):
            rules = default.rules
        if rules == default.rules and state == _ZERO_RULES:
            return ZeRO(**self._sums)
        return ShardingParams(rules=rules, state_rules=state, **self._sums)

    @property
    def _sums(self):
        return {} if self.late is None else {"late_sums": self.late}


@dataclasses.dataclass(frozen=True)
class Priced:
    """A strategy and its cost.

    Attributes:
        strategy: the strategy.
        estimate: of a step.
        fits: whether it is within ROOM of a device's memory.
    """

    strategy: Strategy
    estimate: Estimate
    fits: bool

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
    """The result of a search.

    Attributes:
        best: the fastest strategy that fits within the limit on bytes; if there is none, the
            strategy that fits and sends least.
        runner_up: the same on another mesh, or None.
        fastest: the fastest strategy that fits, without the limit.
        max_sent: the limit of `search`.
        considered: number of strategies on all meshes.
    """

    best: Priced
    runner_up: Priced | None
    fastest: Priced
    max_sent: float
    considered: int

    @property
    def within(self) -> bool:
        """Whether the best strategy is within the limit."""
        return _within(self.best, self.max_sent)


def search_strategies(
    params: TranslationParams, hardware: Hardware, devices: int, max_sent: float = math.inf
) -> Found:
    """The fastest strategy within a device's memory and a limit on bytes sent.

    Times are modelled, while bytes are counted exactly. A limit, such as the bytes of a known
    strategy, avoids gains that exist only in the time model.

    Args:
        params: the model; its own sharding and rematerialisation are ignored.
        hardware: the device.
        devices: the number of devices.
        max_sent: limit on the bytes of all collectives of a device in a step.

    Raises:
        ValueError: the model cannot be split over these devices, no strategy fits, or the
            dispatcher is for one device.
    """
    _check_dispatcher(params, devices)
    space = Space(params, hardware)
    priced = sorted(
        itertools.chain.from_iterable(map(space.strategies, space.meshes(devices))),
        key=lambda one: (one.seconds, one.sent, one.bytes),
    )
    if not priced:
        raise ValueError(
            f"The model cannot be split over {devices} devices: {space.needs(devices)}"
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
    allowed = [one for one in fitting if _within(one, max_sent)]
    allowed = allowed or sorted(fitting, key=lambda one: (one.sent, one.seconds))
    best = allowed[0].strategy
    other = next((s.strategy for s in allowed if s.strategy.mesh != best.mesh), None)
    return Found(
        best=price(params, best, hardware),
        runner_up=price(params, other, hardware) if other else None,
        fastest=price(params, fitting[0].strategy, hardware),
        max_sent=max_sent,
        considered=len(priced),
    )


def price(params: TranslationParams, strategy: Strategy, hardware: Hardware) -> Priced:
    """The cost of one strategy.

    Raises:
        ValueError: the model cannot be split so.
    """
    costs = count_costs(
        apply_strategy(params, strategy),
        strategy.mesh,
        hardware.wire_bytes[params.activation_dtype],
    )
    fits = costs.memory.total <= ROOM * hardware.memory
    return Priced(strategy, estimate(costs, hardware, params.activation_dtype), fits)


def apply_strategy(params: TranslationParams, strategy: Strategy) -> TranslationParams:
    """The params with this strategy; without rematerialisation scan is set to False."""
    scan = params.model.scan and strategy.remat
    remat = strategy.remat and (params.model.remat or not scan)
    model = dataclasses.replace(params.model, scan=scan, remat=remat)
    return dataclasses.replace(params, sharding=strategy.sharding, model=model)


class Space:
    """All strategies for one model on one kind of device."""

    def __init__(self, params: TranslationParams, hardware: Hardware):
        """Lists the model's blocks, once."""
        self.params, self.hardware = params, hardware
        self.blocks = ModelBlocks(params, hardware.wire_bytes[params.activation_dtype])
        model = params.model
        sides = model, model.of_decoder()
        self.heads = math.gcd(*(side.attention_layer.key_heads for side in sides))

    def meshes(self, devices: int) -> Iterator[Mesh]:
        """The meshes over which rows and experts can be split; without axes of size 1."""
        for data, expert in itertools.product(divisors(devices), repeat=2):
            if devices % (data * expert) == 0 and (expert == 1 or self.params.model.moe):
                mesh = make_mesh(data, expert, devices // (data * expert))
                if not self.unmet(mesh):
                    yield mesh

    def refuses(self, mesh: Mesh, choices: tuple[BlockChoice, ...], zero: bool) -> str:
        """The reason why a strategy is not in the space; "" if it is."""
        if unmet := self.unmet(mesh):
            return unmet
        for choice in choices:
            if choice not in self.options(mesh, choice.group, zero):
                return f"weights or slots of {choice.group!r} cannot be split into equal pieces"
        return ""

    def unmet(self, mesh: Mesh) -> str:
        """Why rows, groups or experts cannot be split over a mesh; "" if they can."""
        try:
            self.params.check_mesh(mesh, on_mesh(DATA_AND_EXPERT, mesh))
        except ValueError as error:
            return str(error)
        return ""

    def needs(self, devices: int) -> str:
        """What the model must fulfil for a mesh of this number of devices."""
        rows = self.params.input.batch_size / self.params.train.micro_batches
        groups = experts = ""
        if self.params.model.moe:
            groups = " and model.moe.num_groups"
            experts = "The number of experts must be a multiple of E. "
        return (
            f"input.batch_size / train.micro_batches ({rows:g}){groups} must be a multiple of "
            f"D · E. {experts}At least one of heads, hidden_dim and both vocabulary sizes must be "
            f"a multiple of M. The mesh is data:D,expert:E,model:M with D · E · M = {devices}."
        )

    def options(self, mesh: Mesh, group: str, zero: bool) -> list[BlockChoice]:
        """The choices for a group: all pieces of its weights and slots must be equal."""
        found = []
        for cut, spread in itertools.product((False, True), repeat=2):
            choice = BlockChoice(group, cut, spread)
            if cut and ("model" not in mesh.axes or group == "rest"):
                continue
            if cut and group == "heads" and self.heads % mesh.size(("model",)):
                continue
            if spread and ("expert" not in mesh.axes or group == "hidden"):
                continue  # experts are split along "expert" already
            if self._splits_equally(group, Strategy(mesh, (choice,), zero)):
                found.append(choice)
        return found

    def _splits_equally(self, group, strategy):
        mesh, stored = strategy.mesh, strategy.stored
        for dims, shape in (*self.blocks.weights[group], *self.blocks.slots[group]):
            try:
                axes = assignment(dims, shape, mesh, stored)
            except ValueError:
                return False
            if any(n % mesh.size(a) for n, a in zip(shape, axes, strict=True)):
                return False
        return True

    def _modes(self, mesh):
        """(zero, remat, late)."""
        zeros = (False, True) if "data" in mesh.axes and mesh.shape[0] > 1 else (False,)
        lates = (False, True) if self.blocks.micro_batches > 1 else (None,)
        return itertools.product(zeros, (False, True), lates)

    def strategies(self, mesh: Mesh) -> Iterator["Quick"]:
        """All strategies on a mesh; those that do not use its axis "model" are left out."""
        for zero, remat, late in self._modes(mesh):
            groups = [
                [
                    self._cost(Strategy(mesh, (choice,), zero, remat, late))
                    for choice in self.options(mesh, group, zero)
                ]
                for group in GROUPS
            ]
            for combination in itertools.product(*groups):
                choices, shares, seconds, sent = zip(*combination, strict=True)
                if "model" not in mesh.axes or any(choice.cut for choice in choices):
                    strategy = Strategy(mesh, choices, zero, remat, late)
                    memory = memory_of(self.blocks, shares, remat)
                    yield Quick(strategy, sum(seconds), memory.total, sum(sent))

    def _cost(self, alone: Strategy) -> tuple[BlockChoice, BlockCost, float, float]:
        """The only choice of a strategy, with its share, seconds and bytes sent."""
        (choice,), mesh = alone.choices, alone.mesh
        share = self.blocks.share(
            choice.group, mesh, alone.rules, alone.stored, alone.remat, bool(alone.late)
        )
        dtype, hardware = self.params.activation_dtype, self.hardware
        seconds = sum(work_seconds(work, hardware, dtype) for work in share.work)
        seconds += sum(transfer_seconds(sent, mesh, hardware) for sent in share.transfers)
        return choice, share, seconds, sum(transfer.bytes for transfer in share.transfers)


@dataclasses.dataclass(frozen=True)
class Quick:
    """A strategy with its time, memory and bytes sent alone."""

    strategy: Strategy
    seconds: float
    bytes: float
    sent: float


def _rules(choices: tuple[BlockChoice, ...]) -> tuple[Rule, ...]:
    """Rules: rows and experts as by default, split letters along "model"."""
    cut = "".join(GROUPS[c.group] for c in choices if c.cut)
    return (*DATA_AND_EXPERT, *((letter, ("model",)) for letter in cut))


_AT_REST = {"heads": "A", "vocabulary": "V", "rest": "e"}


def _state_rules(choices: tuple[BlockChoice, ...], zero: bool) -> tuple[Rule, ...]:
    spread = [
        (_AT_REST[c.group], (("model",) if c.cut else ()) + ("expert",))
        for c in choices
        if c.spread
    ]
    # In the order of the mesh: inner axes follow outer ones.
    spread = [(letter, tuple(a for a in AXES if a in axes)) for letter, axes in spread]
    return (*(_ZERO_RULES if zero else ()), *spread)


def _within(one: "Quick | Priced", max_sent: float) -> bool:
    return one.sent <= max_sent * (1 + 1e-9)  # rounding depends on the order of a sum


def _check_dispatcher(params, devices):
    moe = params.model.moe
    if devices > 1 and moe and isinstance(moe.dispatcher, Ragged | Dropless):
        raise ValueError(one_device(moe.dispatcher))


def divisors(n: int) -> list[int]:
    """The divisors of n, ascending."""
    return [i for i in range(1, n + 1) if n % i == 0]


def make_mesh(data: int, expert: int, model: int) -> Mesh:
    """The mesh without axes of size 1; a single device has the axis "data"."""
    named = [(a, n) for a, n in zip(AXES, (data, expert, model), strict=True) if n > 1]
    return Mesh(*zip(*named or [("data", 1)], strict=True))
