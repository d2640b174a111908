"""What encoder and decoder read of sentences with tags.

B rows, L source length, T target length.
"""

import tensorflow as tf

from lingvo_moe.data.language_tags import LanguageTags
from lingvo_moe.nn.tokens import Tokens


def split_request(
    tags: LanguageTags, source_ids: tf.Tensor, lengths: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """A batch to translate, without the tags that the decoder is given.

    Args:
        tags: where they stand.
        source_ids: int32 [B, L], of `LanguageTags.prefix`, pieces and EOS.
        lengths: int32 [B].

    Returns:
        What the encoder reads: ids and lengths; and the first token of each target int32 [B], None
        if none is given.
    """
    if not tags.on_target:
        return source_ids, lengths, None
    return source_ids[:, 1:], tf.maximum(lengths - 1, 0), source_ids[:, 0]


def sides_of(
    tags: LanguageTags,
    source_ids: tf.Tensor,
    source_lengths: tf.Tensor,
    target_ids: tf.Tensor,
    target_lengths: tf.Tensor,
    tasks: tf.Tensor | None,
) -> tuple[Tokens, Tokens, int]:
    """The sides of a batch under teacher forcing.

    Args:
        tags: where tags of languages stand.
        source_ids, source_lengths: as for `split_request`.
        target_ids: int32 [B, T], pieces and EOS.
        target_lengths: int32 [B].
        tasks: int32 [B], for routers by task; or None.

    Returns:
        What the encoder reads; what the decoder reads, the target shifted right behind the start
        and a tag that is given; and where the targets begin among the decoder's outputs.
    """
    source_ids, source_lengths, first = split_request(tags, source_ids, source_lengths)
    inputs = tf.pad(target_ids, [[0, 0], [1, 0]], constant_values=tags.start)
    if first is None:
        inputs = inputs[:, :-1]
    else:
        inputs = tf.concat([inputs[:, :1], first[:, None], inputs[:, 1:-1]], axis=1)
        target_lengths += 1
    source, target = (
        Tokens(
            ids,
            tf.sequence_mask(lengths, tf.shape(ids)[1], tf.int32),
            None if tasks is None else tf.broadcast_to(tasks[:, None], tf.shape(ids)),
        )
        for ids, lengths in ((source_ids, source_lengths), (inputs, target_lengths))
    )
    return source, target, 0 if first is None else 1
