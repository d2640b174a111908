import pytest

from lingvo_moe.tasks.languages import (
    check_source_language,
    check_target_language,
    source_languages,
)


def test_sources_are_those_of_pairs_and_the_languages_with_a_tag():
    assert source_languages(["de-en", "fr-en", "en-pt_BR"], ["en", "pt_BR"]) == [
        "de", "en", "fr", "pt_BR",
    ]  # fmt: skip
    assert source_languages([], ["en"]) == []  # an imported model: they are unknown


def test_only_an_unknown_language_is_refused():
    for language, known in ((None, ["de"]), ("de", ["de"]), ("xx", [])):
        check_source_language(language, known)
    with pytest.raises(ValueError, match="from 'xx'"):
        check_source_language("xx", ["de", "en"])


@pytest.mark.parametrize(
    ("language", "meant"),
    [("EN", "en"), ("eng", "en"), ("pt-BR", "pt_BR"), ("pt", "pt_BR"), ("fr", None), ("", None)],
)
def test_an_unknown_target_language_is_an_error_with_the_near_name(language, meant):
    check_target_language("en", ["en"])
    hint = f" Did you mean '{meant}'\\?" if meant else ""
    with pytest.raises(ValueError, match=rf"into '{language}'; it knows en, es, pt_BR\.{hint}$"):
        check_target_language(language, ["es", "en", "pt_BR"])
