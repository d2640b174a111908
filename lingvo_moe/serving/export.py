"""Export to a SavedModel that takes strings and returns strings.  B sentences, N best."""

import shutil
from pathlib import Path

import tensorflow as tf
import tensorflow_text as tf_text

from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.tasks.model_dir import ModelDir

_CLIENT = Path(__file__).with_name("client.py")


class ServedModel(tf.Module):
    """Vocabularies, weights and beam search in one graph."""

    def __init__(self, model_dir: ModelDir, theta: NestedMap):
        """Gathers what the graph needs.

        Args:
            model_dir: the trained model.
            theta: its weights.
        """
        super().__init__()
        self._task = model_dir.task
        self._theta = theta.map(lambda weight: tf.Variable(weight, trainable=False))
        self._weights = [
            variable for _, variable in self._theta.flatten()
        ]  # tf.Module tracks lists
        # Without names of their own, both would be one resource in the loaded model.
        self._source, self._target = (
            tf_text.SentencepieceTokenizer(
                model=model_dir.vocabulary(side).model_bytes, out_type=tf.int32, name=side
            )
            for side in ("source", "target")
        )
        self._max_source_length = 4 * model_dir.params.input.source_length
        languages = sorted(model_dir.tags)
        self._languages = ", ".join(languages)
        self._tags = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant(languages),
                tf.constant([model_dir.tags[language] for language in languages], tf.int32),
            ),
            default_value=-1,
        )

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None], tf.string, "sentences"),
            tf.TensorSpec([], tf.string, "target_language"),
        ],
    )
    def translate(self, sentences, target_language):
        """Translates sentences.

        Args:
            sentences: string [B], UTF-8.
            target_language: string [], such as "en".

        Returns:
            `translations` string [B, N], best first, empty for empty sentences; `scores` float32
            [B, N], length-normalised log-probabilities.

        Raises:
            tf.errors.InvalidArgumentError: the model does not know the target language.
        """
        tag = self._tags.lookup(target_language)
        known = tf.debugging.assert_non_negative(
            tag, f"This model does not translate into that language; it knows {self._languages}."
        )
        with tf.control_dependencies([known] if known is not None else []):
            pieces = self._source.tokenize(sentences)[:, : self._max_source_length - 2]
        batch = pieces.nrows(out_type=tf.int32)
        ends = tf.ones([batch, 1], tf.int32)
        ids = tf.concat([ends * tag, pieces, ends * EOS], axis=1)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        output = self._task.translate(self._theta, ids.to_tensor(), lengths)
        return self._texts(sentences, output)

    def _texts(self, sentences, output):
        n_best = output.lengths.shape[1]
        flat_ids = tf.reshape(output.ids, [-1, tf.shape(output.ids)[2]])
        real = tf.sequence_mask(tf.reshape(output.lengths, [-1]), tf.shape(flat_ids)[1])
        texts = self._target.detokenize(tf.ragged.boolean_mask(flat_ids, real & (flat_ids != EOS)))
        texts = tf.reshape(texts, [-1, n_best])
        empty = tf.equal(tf.strings.strip(sentences), "")[:, None]
        return {
            "translations": tf.where(empty, "", texts),
            "scores": tf.where(empty, 0.0, output.scores),
        }


def export_saved_model(model_dir: ModelDir, output: Path, step: int | None = None) -> int:
    """Writes a SavedModel, and beside it `translate.py`, a client that shows how to call it.

    The signature `serving_default` (also the method `translate`) takes strings and returns
    strings; TensorFlow and tensorflow-text are all that a process needs to load and call it.

    Args:
        model_dir: the trained model.
        output: the directory to write.
        step: which checkpoint; None for the best.

    Returns:
        The step exported.
    """
    checkpoint = model_dir.read_checkpoint(step)
    prefix = "theta/"
    theta = NestedMap.unflatten(
        {n.removeprefix(prefix): t for n, t in checkpoint.tensors.items() if n.startswith(prefix)}
    )
    module = ServedModel(model_dir, theta)
    tf.saved_model.save(module, str(output), signatures=module.translate)
    shutil.copyfile(_CLIENT, output / "translate.py")
    return checkpoint.step
