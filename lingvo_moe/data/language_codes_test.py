import pytest

from lingvo_moe.data.language_codes import are_near, code_warnings


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("en", "EN", True),
        ("es", "spa", True),
        ("pt", "pt_BR", True),
        ("zh_Hans", "zho_Hans", True),
        ("ar", "arb_Arab", True),
        ("sr", "sr@latin", True),
        ("es", "es", False),
        ("pt_BR", "pt_PT", False),
        ("zh_Hans", "zh_Hant", False),
        ("es", "et", False),
        ("klingon", "KLINGON", True),  # no code of a language
    ],
)
def test_codes_of_one_language(one, other, near):
    assert are_near(one, other) == are_near(other, one) == near


def test_a_warning_names_the_codes():
    (line,) = code_warnings(["es", "en", "spa", "EN", "fr", "en"])
    assert ": EN and en, es and spa. " in line
    assert code_warnings(["es", "en", "fr"]) == []
