import pytest

from lingvo_moe.tasks.languages import check_source_language, source_languages


def test_sources_are_those_of_pairs_and_the_languages_with_a_tag():
    assert source_languages(["de-en", "fr-en", "en-pt_BR"], ["en", "pt_BR"]) == [
        "de", "en", "fr", "pt_BR",
    ]  # fmt: skip
    assert source_languages([], ["en"]) == []  # an imported model: they are unknown


def test_only_an_unknown_language_is_refused():
    for language, known in ((None, ["de"]), ("de", ["de"]), ("xx", [])):
        check_source_language(language, known)
    message = "does not translate from 'xx'; it knows de, en. Give one of them, or leave it out"
    with pytest.raises(ValueError, match=message):
        check_source_language("xx", ["de", "en"])
