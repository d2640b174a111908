"""SentencePiece's model file as a protobuf message, with any version of protobuf.

The module that sentencepiece ships for this refuses a protobuf older than the one it was generated
with. apache-beam, for example, requires an older one. So the fields that preparation uses are
declared here. Protobuf keeps the other fields: a file that is parsed and serialised has the same
bytes as before.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of pieces
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "lingvo_moe.sentencepiece"
# Message -> its fields: number, type (a message's name for a part), default value.
_MESSAGES: dict[str, dict[str, tuple[int, Any, str | None]]] = {
    "Piece": {
        "piece": (1, _Field.TYPE_STRING, None),
        "score": (2, _Field.TYPE_FLOAT, None),
        "type": (3, _Field.TYPE_INT32, "1"),
    },
    "Trainer": {
        "input": (1, _Field.TYPE_STRING, None),
        "model_prefix": (2, _Field.TYPE_STRING, None),
        "model_type": (3, _Field.TYPE_INT32, "1"),
        "vocab_size": (4, _Field.TYPE_INT32, "8000"),
    },
    "Normalizer": {
        "name": (1, _Field.TYPE_STRING, None),
        "precompiled_charsmap": (2, _Field.TYPE_BYTES, None),
        "add_dummy_prefix": (3, _Field.TYPE_BOOL, "true"),
        "remove_extra_whitespaces": (4, _Field.TYPE_BOOL, "true"),
        "normalization_rule_tsv": (6, _Field.TYPE_STRING, None),
    },
    "Model": {
        "pieces": (1, "Piece", None),
        "trainer_spec": (2, "Trainer", None),
        "normalizer_spec": (3, "Normalizer", None),
    },
}
_REPEATED = ("pieces", "input")


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="lingvo_moe_model_file.proto", package=_PACKAGE)
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind, default) in fields.items():
            field = described.field.add(name=name, number=number, default_value=default)
            field.label = _Field.LABEL_REPEATED if name in _REPEATED else _Field.LABEL_OPTIONAL
            field.type = _Field.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Model"))


ModelFile = _message_class()
