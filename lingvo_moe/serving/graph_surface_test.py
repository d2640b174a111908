"""The graph does to the surface of texts what `data/surface.py` does."""

import functools
import random

import tensorflow as tf

from lingvo_moe.data import surface
from lingvo_moe.serving import graph_surface

TEXTS = """
102|٨٢٥|½ ™|😀👍🏽|👩‍👩‍👧 ❤️|ℹ️|1️⃣|...|«»|e\u0301|\u0301|\u093f|Ⅷ|ʼ|ª|\ufeffhttps://a.b/c|(www.a.de)|
mailto:a.b+c@d-e.org.|example.com/ä b|example.com|EXAMPLE.COM|a@b|https://a.b，谢谢|https://a.b/Москва|
看https://a.b|http://|1.com 2|NATO|USB 3.0|STOP!|HALTE|A B|A|ABCDE|ABCDe|STRAßE 1ª|GROẞE STRASSE|
İSTANBUL IRMAĞI|ILIK SU|ΑΣ ΠΑΜΕ ΣΤΙΣ ΟΔΟΥΣ.|Ϊ́ ΜΑΪ́ΟΣ ΝΕΡΆΙΔΑ|ᾼΔΗΣ ᾈΔΗΣ|ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ|ႠႡႢ ႣႤႥ|ᲒᲐᲛᲐ ᲠᲯᲝᲑᲐ|
გამა|NBA 和 CBA|ПРИВЕТ, МИР! КАК ДЕЛА?|Привет|𞤀𞤁𞤂 𞤃𞤄|Ǆ Ǉ|ǅ ǈ|ŉ ǰ ΐ ﬁ ᾳ|ﬁne|ΓΆΪΔΑΡΟΣ|
ｆｕｌｌ ＦＵＬＬ|"WHO?" "ME." ⅣⅤ ⒶⒷ|1. ERST. «ZWEIT.» ℹ DRITT|ÄÖÜ E\u0301TE\u0301|שלום AB CD|नमस्ते|
HE SAID:\tNO\u2028YES.\u00a0OK|
""".replace("\n", "").split("|")
PIECES = [
    *" \t\u3000\u200b.:/@-!?\"')«1٣😀",
    *"aZßẞiIıİσΣςάΪΐﬁŉǆǅǄªºʼℹ和Ꭰꭰაა",
    "://",
    "www.",
    ".com",
    "\u0301",
]
LANGUAGES = ["en", "tr", "aze_Latn", "el", "ell_Grek", "de", "trx"]


def texts():
    """Lines of many scripts, and random ones of odd characters."""
    draw = random.Random(1)
    return [*TEXTS, *("".join(draw.choices(PIECES, k=draw.randint(1, 9))) for _ in range(3000))]


def check(in_graph, expected):
    lines = texts()
    found = in_graph(tf.constant(lines)).numpy().tolist()
    found = [one.decode() if isinstance(one, bytes) else one for one in found]
    wrong = [
        one for one in zip(lines, found, map(expected, lines), strict=True) if one[1] != one[2]
    ]
    assert not wrong, wrong[:5]


def test_the_graph_agrees_on_what_is_copied_and_what_is_in_capitals():
    check(graph_surface.wordless, surface.wordless)
    check(graph_surface.copies_of, surface.copy_of)
    check(graph_surface.shouted, surface.shouted)


def test_the_graph_lowers_and_raises_as_python_does():
    check(graph_surface.lowered, surface.lowered)
    for name in LANGUAGES:
        for function in ("lowered", "raised"):
            python, graph = (getattr(module, function) for module in (surface, graph_surface))
            check(
                functools.partial(graph, language=tf.constant(name)),
                functools.partial(python, language=name),
            )
