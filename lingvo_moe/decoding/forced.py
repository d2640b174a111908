"""Log-probabilities of given translations, step by step as a search computes them.

B sentences, L source length, T target length.
"""

import tensorflow as tf

from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.special_tokens import BOS


def score_given(
    model: Transformer,
    laid_out: NestedMap,
    source_ids: tf.Tensor,
    source_lengths: tf.Tensor,
    target_ids: tf.Tensor,
    tasks: tf.Tensor | None = None,
    start: int = BOS,
    first: tf.Tensor | None = None,
) -> tf.Tensor:
    """Log P of each token of given translations, int32 [B, T], EOS last, by forced decoding:
    float32 [B, T] in nats, without meaning after EOS. Other arguments are those of `beam_search`.

    The weights are as `lay_out` arranges them for beam search. `TranslationTask.score` computes all
    tokens in one pass, with the weights as in training.
    """
    encoded = model.encode(laid_out, source_ids, source_lengths, tasks)
    labels = target_ids if first is None else tf.concat([first[:, None], target_ids], axis=1)
    inputs = tf.pad(labels, [[0, 0], [1, 0]], constant_values=start)
    batch, steps = tf.shape(labels)[0], tf.shape(labels)[1]
    position = tf.range(steps)

    def advance(step, caches, found):
        visible = tf.broadcast_to(position <= step, [batch, 1, steps])
        newest = tf.gather(inputs, step, axis=1)[:, None]
        logits, caches, _ = model.step(laid_out, newest, step, caches, visible, encoded)
        log_probs = tf.nn.log_softmax(logits[:, 0])
        label = tf.gather(labels, step, axis=1)
        return step + 1, caches, found.write(step, tf.gather(log_probs, label, batch_dims=1))

    state = (
        tf.constant(0),
        model.empty_caches(source_lengths, steps, laid_out.decoder.embedding.table.dtype),
        tf.TensorArray(tf.float32, steps, element_shape=[None]),
    )
    *_, found = tf.while_loop(lambda step, *_: step < steps, advance, state)
    log_probs = tf.transpose(found.stack())
    return log_probs if first is None else log_probs[:, 1:]
