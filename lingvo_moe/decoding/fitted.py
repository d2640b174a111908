"""What the data of a model says about its translations, by target language."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

FITTED = ("length_penalty", "length_ratio", "expected_ratio")


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The values of params of a search that are FROM_DATA, and the form of the text."""

    penalty: float = 1.0  # length_penalty of languages without their own
    # target language -> its own length_penalty
    penalties: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # target language -> length_ratio
    ratios: Mapping[str, float] = dataclasses.field(default_factory=dict)
    # target language -> expected_ratio
    expected: Mapping[str, float] = dataclasses.field(default_factory=dict)
    decomposed: Sequence[str] = ()  # target languages whose translations are in NFD

    def numbers(self, language: str | None = None) -> dict[str, Any]:
        """The value of each of FITTED for a language; None for the largest length_ratio of all."""
        most = max(self.ratios.values(), default=1.5)
        penalty = self.penalty
        if self.expected and language not in self.expected:
            # A larger one was fitted to lengths that expected_ratio bounds.
            penalty = min(penalty, UNFITTED.penalty)
        return {
            "length_penalty": self.penalties.get(language or "", penalty),
            "length_ratio": self.ratios.get(language or "", most),
            "expected_ratio": self.expected.get(language or "", 0.0),
        }


UNFITTED = Fitted()
