"""Tokenizers of Hugging Face's M2M-100 and NLLB models, as vocabularies.

Both cut a text by a SentencePiece model, and number its pieces in another order. A vocabulary is
the same model with its pieces in the order of ids: padding, `<s>`, `</s>`, `<unk>` as everywhere
here (the original has the first two the other way round), then pieces, then the tags of languages
and other tokens that no text contains, as control symbols.
"""

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lingvo_moe.config.fields import check_fields
from lingvo_moe.data.vocabulary import Vocabulary, tag_piece
from lingvo_moe.nn.special_tokens import BOS, EOS, PAD, UNK
from lingvo_moe.system.files import read_json

MODEL, PIECES = "sentencepiece.bpe.model", "vocab.json"
_TOKENIZER, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_ADDED = "added_tokens.json"
# What is copied along, to be exported again.
FILES = (
    MODEL,
    PIECES,
    _TOKENIZER,
    _SETTINGS,
    "special_tokens_map.json",
    _ADDED,
    "generation_config.json",
)
# Of M2M-100, whose files do not give the ids of its languages; in their order.
_M2M100 = """
    af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha
    he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my
    ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz
    vi wo xh yi yo zh zu
"""
_NAMES = {PAD: "<pad>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})")


def read_vocabulary(directory: Path, size: int) -> Vocabulary:
    """The vocabulary of a checkpoint with its tokenizer's files; `size` is the rows of the
    embedding. Raises ValueError: a file is missing or damaged, or they do not agree with each other
    or the size."""
    model = _read_model(directory / MODEL)
    settings = directory / _SETTINGS
    if settings.exists() and read_json(settings).get("legacy_behaviour") is True:
        raise ValueError(
            f"{settings}: legacy_behaviour=true puts the language after the source text, which "
            f"lingvo_moe cannot do. If the model was trained with the language in front, set "
            f"legacy_behaviour to false."
        )
    pieces = (_m2m100 if (directory / PIECES).exists() else _nllb)(directory, model)
    added = _added(directory, len(pieces), (directory / PIECES).exists())
    for index, name in added.items():
        if index > UNK:
            if index in pieces:
                raise ValueError(
                    f"{directory}: the tokenizer has {name!r} and {pieces[index].piece!r} for the "
                    f"id {index}; one of its files is of another model. Get the files again."
                )
            pieces[index] = _control(name)
    if max(pieces) >= size:
        raise ValueError(
            f"{directory}: the tokenizer has ids up to {max(pieces)}, the embedding {size} rows."
        )
    del model.pieces[:]
    for index in range(size):
        model.pieces.append(pieces.get(index) or _control(f"<row {index}>"))
    return Vocabulary(model.SerializeToString(deterministic=True))


def _read_model(path: Path) -> Any:
    """The ModelProto, with ids and names of special pieces as they are here."""
    if not path.exists():
        raise ValueError(
            f"{path.parent} has no {MODEL}, which the vocabulary is made of. Get this file and the "
            f"other files of the tokenizer from the repository of the model."
        )
    Vocabulary.load(path)
    model = _messages().ModelProto.FromString(path.read_bytes())
    trained = model.trainer_spec
    trained.pad_id, trained.bos_id, trained.eos_id, trained.unk_id = PAD, BOS, EOS, UNK
    trained.pad_piece, trained.bos_piece = _NAMES[PAD], _NAMES[BOS]
    trained.eos_piece, trained.unk_piece = _NAMES[EOS], _NAMES[UNK]
    trained.unk_surface = ""
    return model


@functools.cache
def _messages() -> Any:
    """SentencePiece's own module of messages, with all fields. Raises ImportError: protobuf is
    older than the one that generated the module."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except Exception as error:  # protobuf's VersionError
        raise ImportError(
            f"The module of sentencepiece does not fit the installed protobuf: {error} Install "
            f"both without apache-beam, which requires an older protobuf."
        ) from error
    return sentencepiece_model_pb2


def _piece_class() -> Any:
    return _messages().ModelProto.SentencePiece


def _special() -> dict[int, Any]:
    pieces = {index: _control(name) for index, name in _NAMES.items()}
    pieces[UNK].type = _piece_class().UNKNOWN
    return pieces


def _control(name: str) -> Any:
    language = _LANGUAGE.fullmatch(name)
    text = tag_piece(language[1] or language[2]) if language else name
    piece = _piece_class()
    return piece(piece=text, score=0.0, type=piece.CONTROL)


def _nllb(directory: Path, model: Any) -> dict[int, Any]:
    """Id -> piece: ids are SentencePiece's plus 1."""
    del directory
    special = _piece_class().UNKNOWN, _piece_class().CONTROL
    ordinary = [piece for piece in model.pieces if piece.type not in special]
    return _special() | {UNK + 1 + i: piece for i, piece in enumerate(ordinary)}


def _m2m100(directory: Path, model: Any) -> dict[int, Any]:
    """Id -> piece, by vocab.json.

    SentencePiece passes on a character that it does not know, which may have an entry; longer
    entries that it does not know never occur. Pieces without an entry are left out, so a word has
    shorter ones; transformers reads such a piece, and a run of unknown characters, as <unk>.
    """
    path = directory / PIECES
    ids = read_json(path)
    check_fields({"ids": ids}, {"ids": dict[str, int]}, str(path))
    known = {piece.piece: piece for piece in model.pieces}
    if [ids.get(name) for name in ("<s>", "<pad>", "</s>", "<unk>")] != [0, 1, 2, 3]:
        raise ValueError(f"{path} must begin with <s>, <pad>, </s> and <unk>; get the file again.")
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"{path} must number its entries from 0 on; get the file again.")
    pieces = _special()
    least = min(piece.score for piece in model.pieces)
    for name, index in ids.items():
        if index > UNK:
            character = _piece_class()(piece=name, score=least - 1.0)
            pieces[index] = known.get(name) or (character if len(name) == 1 else _control(name))
    return pieces


def _added(directory: Path, first: int, m2m100: bool) -> dict[int, str]:
    """Id -> name of the tokens that are no pieces, of the first file that has languages."""
    for name, read in _LISTS.items():
        path = directory / name
        found = _names_of(path, read) if path.exists() else {}
        if any(_LANGUAGE.fullmatch(token) for token in found.values()):
            return found
    if not m2m100:
        raise ValueError(
            f"{directory} has no list of its languages; get its {_TOKENIZER} or {_SETTINGS} too."
        )
    return dict(enumerate((f"__{code}__" for code in _M2M100.split()), first))


# A file with added tokens, and what reads (id, token) from it; the last one is of early versions.
_LISTS: dict[str, Callable[[dict], Iterable[tuple[int, Any]]]] = {
    _TOKENIZER: lambda fields: ((one["id"], one) for one in fields.get("added_tokens", [])),
    _SETTINGS: lambda fields: (
        (int(index), token) for index, token in fields.get("added_tokens_decoder", {}).items()
    ),
    _ADDED: lambda fields: ((index, {"content": name}) for name, index in fields.items()),
}


def _names_of(path: Path, read: Callable[[dict], Iterable[tuple[int, Any]]]) -> dict[int, str]:
    """Id -> name of the added tokens in a file. Raises ValueError: the file is damaged, or has a
    token that texts contain."""
    names = {}
    try:
        for index, token in read(read_json(path)):
            names[index] = name = token["content"]
            is_special = token.get("special") is not False or _LANGUAGE.fullmatch(name)
            if index > UNK and not is_special:
                raise ValueError(
                    f"{path}: the added token {name!r} is ordinary text (special=false), which "
                    f"this version of lingvo_moe cannot read. Remove the token from the file; then "
                    f"its text is cut into other pieces, which the model knows less well."
                )
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{path} has no list of added tokens; get the file again.") from error
    return names
