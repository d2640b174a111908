"""The network of an exported graph, which its functions share, so that it is stored once.

B sentences, K hypotheses.
"""

import dataclasses
import functools
from typing import NamedTuple

import tensorflow as tf

from lingvo_moe.layers.transformer import Transformer
from lingvo_moe.nn.nested_map import NestedMap


class Packed(NamedTuple):
    """Weights of `Transformer.lay_out` as one tensor.

    A loop in a graph has one input for each tensor that it uses, with a name in each of its
    functions. For hundreds of weights these would be half of the graph.
    """

    weights: tf.experimental.Optional  # an Optional of all weights, a NestedMap
    # a NestedMap with `embedding.table` alone, because a search reads its dtype for the caches
    decoder: NestedMap

    @staticmethod
    def of(laid_out: NestedMap) -> "Packed":
        """The weights, tensors or variables."""
        tensors = tf.nest.map_structure(tf.convert_to_tensor, laid_out)
        table = NestedMap(table=tensors.decoder.embedding.table)
        return Packed(tf.experimental.Optional.from_value(tensors), NestedMap(embedding=table))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedTransformer(Transformer):
    """A Transformer whose encoder and step are functions. TensorFlow inlines them.

    Its weights are Packed.
    """

    @staticmethod
    def of(model: Transformer) -> "SharedTransformer":
        """The same network."""
        return SharedTransformer(
            params=model.params,
            source_vocab_size=model.source_vocab_size,
            target_vocab_size=model.target_vocab_size,
        )

    @functools.cached_property
    def _encode(self):
        encode = super().encode
        return tf.function(
            lambda packed, *given: encode(packed.get_value(), *given), autograph=False
        )

    @functools.cached_property
    def _step(self):
        step = super().step
        return tf.function(lambda packed, *given: step(packed.get_value(), *given), autograph=False)

    def encode(self, laid_out, source_ids, lengths, tasks=None):
        """As Transformer.encode."""
        return self._encode(laid_out.weights, source_ids, lengths, tasks)

    def step(self, laid_out, token_ids, step, caches, visible, source):
        """As Transformer.step, with one graph for all K."""
        given = (laid_out.weights, token_ids, step, caches, visible, source)
        specs = list(tf.nest.map_structure(tf.type_spec_from_value, given))
        for place in (1, 4):
            specs[place] = tf.TensorSpec([None] * given[place].shape.rank, given[place].dtype)
        self._step.get_concrete_function(*specs)  # later calls use it too
        logits, *others = self._step(*given)
        logits.set_shape([None, token_ids.shape[1], None])
        return logits, *others
