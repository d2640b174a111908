"""The costs of well-known strategies, to compare with the result of the search."""

import dataclasses
import math

from lingvo_moe.hardware.chips import Hardware
from lingvo_moe.planning.blocks import GROUPS
from lingvo_moe.planning.search import (
    BlockChoice,
    Found,
    Priced,
    Space,
    Strategy,
    divisors,
    make_mesh,
    price,
    search_strategies,
)
from lingvo_moe.tasks.params import TranslationParams

HAND = "the paper's annotation"


@dataclasses.dataclass(frozen=True)
class SearchReport:
    """The result of a search, with alternatives.

    Attributes:
        found: the result of the search.
        alternatives: name, such as "tensor parallel" -> its cost, or the reason why the model
            cannot be split so.
    """

    found: Found
    alternatives: dict[str, Priced | str]


def compare_strategies(
    params: TranslationParams, hardware: Hardware, devices: int, max_sent: float | None = None
) -> SearchReport:
    """Searches, and computes the cost of the well-known strategies.

    Args:
        params: the model.
        hardware: the device.
        devices: number of devices.
        max_sent: limit on the bytes of a device's collectives in a step; by default the bytes of
            the paper's annotation, or for a dense model those of data parallelism; no limit if data
            parallelism does not fit in memory.

    Raises:
        ValueError: as `search`.
    """
    space = Space(params, hardware)
    expert = max(
        n
        for n in divisors(devices)
        if n == 1 or (params.model.moe and not space.unmet(make_mesh(devices // n, n, 1)))
    )
    model = max(n for n in divisors(devices) if space.heads % n == 0)
    # GShard splits experts and batch over all devices. Its T(96L) was a pipeline, which this
    # package does not have; data parallelism replaces it.
    named = {
        HAND: ((devices // expert, expert, 1), False, False),
        "data parallel": ((devices, 1, 1), False, False),
        "ZeRO": ((devices, 1, 1), False, True),
        "tensor parallel": ((devices // model, 1, model), True, False),
    }
    alternatives = {name: _priced(space, *choice) for name, choice in named.items()}
    if max_sent is None:
        hand = alternatives[HAND]
        max_sent = math.inf
        if isinstance(hand, Priced) and (hand.fits or params.model.moe):
            max_sent = hand.sent
    return SearchReport(search_strategies(params, hardware, devices, max_sent), alternatives)


def _priced(space: Space, sizes: tuple[int, ...], cut: bool, zero: bool) -> Priced | str:
    mesh = make_mesh(*sizes)
    cut = cut and "model" in mesh.axes
    choices = tuple(BlockChoice(group, cut and group != "rest", False) for group in GROUPS)
    if reason := space.refuses(mesh, choices, zero):
        return reason
    # ZeRO() has no late sums, so it holds no whole gradient.
    late = not zero if space.blocks.micro_batches > 1 else None
    tried = [
        price(space.params, Strategy(mesh, choices, zero, remat, late), space.hardware)
        for remat in (False, True)
    ]
    # Layers are rematerialised only if the strategy would not fit otherwise.
    return next((one for one in tried if one.fits), tried[-1])
