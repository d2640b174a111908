"""Text in another language than the name of its file says."""

import dataclasses
import functools

from lingvo_moe.core.fields import PositiveInt, Share
from lingvo_moe.data.cleaning.base import CleaningRule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language(CleaningRule):
    """A side is in another language, as py3langid finds (extra `langid`).

    Languages that py3langid does not know are not checked.

    Attributes:
        probability: a line is dropped if the other language has at least this probability.
        shortest: texts with fewer characters are not checked.

    Raises:
        ImportError: py3langid is not installed.
    """

    name = "language"
    probability: Share = 0.9
    shortest: PositiveInt = 20

    def __post_init__(self):
        super().__post_init__()
        _identifier()  # an error before any work

    def drops(self, texts, languages):
        return any(map(self._is_other, texts, languages))

    def _is_other(self, text, language):
        expected = language.replace("@", "_").partition("_")[0]
        if len(text) < self.shortest or expected not in _identifier().labels:
            return False
        found, probability = _identifier().classify(text)
        return found != expected and probability >= self.probability


@functools.cache
def _identifier():
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise ImportError(
            "The cleaning rule Language needs py3langid: pip install 'lingvo-moe[langid]'."
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
