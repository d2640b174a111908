"""Export to a SavedModel that takes strings and returns strings.  B sentences, N best."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from lingvo_moe.config.fields import FROM_DATA
from lingvo_moe.config.params import to_fields
from lingvo_moe.data.vocabulary import EOS
from lingvo_moe.decoding.fitted import FITTED
from lingvo_moe.decoding.flat_beam_search import beam_search
from lingvo_moe.decoding.forced import score_given
from lingvo_moe.decoding.request import Request, numbers_of
from lingvo_moe.inference.scorer import MAX_TOKENS
from lingvo_moe.inference.translator import export_request, max_pieces, part_pieces
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.smart_cond import size_of
from lingvo_moe.serving import graph_surface as surface
from lingvo_moe.serving.formats.base import Format
from lingvo_moe.serving.formats.storage import FLOAT32, Storage, Stored
from lingvo_moe.serving.graph import (
    GraphVocabulary,
    SentenceEncoder,
    checked,
    checked_numbers,
    function_of,
    rstrip,
    with_end,
)
from lingvo_moe.serving.graph_network import Packed, SharedTransformer
from lingvo_moe.system.console import quiet
from lingvo_moe.tasks.model_dir import ModelDir
from lingvo_moe.tasks.translation import split_request


class ServedModel(tf.Module):
    """Vocabularies, weights and beam search in one graph.

    Attributes:
        translate: a tf.function of `sentences` string [B], UTF-8, `source_language` string [] (only
            for models that need it), and `target_language` string [], such as "en". It returns
            `translations` string [B, N], best first, each one line, copies for sentences without
            words; `scores` float32 [B, N], length-normalised log-probabilities; `lengths` int32
            [B, N], numbers of tokens with EOS; and `left_out` int32 [B], the number of tokens cut
            from a sentence that is too long. An unknown language raises
            tf.errors.InvalidArgumentError.
        translate_with: the same with further arguments: the options of a request, by default those
            of the model. They are the numeric ones (`numbers_of`; OWN is the number fitted to the
            target language), and `source_prefix` and `target_prefix` string [] (the latter if the
            model supports it). A value that breaks a rule raises tf.errors.InvalidArgumentError.
            It also returns `tokens` string [B, N, T], the pieces of each translation, with EOS,
            then ""; `log_probs` float32 [B, N, T], that of each token, then 0; `source` string
            [B, L], the pieces of each sentence, then ""; and `aligned` int32 [B, N, T], the index
            in `source` of each token's aligned piece, or -1.
        score: a tf.function of `sentences` and `translations` string [B], and the languages. It
            returns `tokens` string [B, T] and `log_probs` float32 [B, T], as above.
        count_pieces, count_target_pieces: tf.functions of `texts` string [B] -> int32 [B], their
            numbers of tokens.
        about: a tf.function without arguments: the attributes of an `Exported`; `options`, the
            values of the options of `translate_with` in the model, by name; `search`, the params of
            decoding as JSON; and each of FITTED, float32, one for each of `languages`.
    """

    def __init__(self, model_dir: ModelDir, theta: NestedMap, storage: Storage = FLOAT32):
        """Prepares the functions.

        Args:
            model_dir: the trained model.
            theta: its weights, float32 arrays.
            storage: how weights are stored in the file.
        """
        super().__init__()
        self._model_dir, self._task = model_dir, model_dir.task
        self._tags = self._task.params.language_tags
        self._request = export_request(model_dir)
        if storage.widens:
            packed = theta.map(storage.pack, self._task.weights())
            weights = tf.nest.map_structure(_variable, packed)
            laid_out = tf.function(
                lambda: Packed.of(self._task.lay_out(weights.map(Stored.unpack))), autograph=False
            )
            self._laid_out = lambda: laid_out()  # an attribute that is a tf.function is saved
        else:
            weights = tf.nest.map_structure(_variable, self._task.lay_out(theta.map(tf.constant)))
            self._laid_out = lambda: Packed.of(weights)
        self._variables = tf.nest.flatten(weights)  # tf.Module tracks lists
        self._network = SharedTransformer.of(self._task.transformer)
        source, target = (
            GraphVocabulary(model_dir.vocabulary(side), side) for side in ("source", "target")
        )
        self._target = target
        self._read = SentenceEncoder(self._task, model_dir.tags, source)
        self._tables = self._read.tables
        self._max_pieces = max_pieces(model_dir.params)
        numbers = [model_dir.fitted.numbers(name) for name in sorted(model_dir.tags)]
        self._fitted = {n: tf.constant([one[n] for one in numbers], tf.float32) for n in FITTED}
        strings, string = tf.TensorSpec([None], tf.string), tf.TensorSpec([], tf.string)
        first = {"sentences": strings}
        both = {"source_language": string, "target_language": string}
        languages = both if self._task.needs_source_language else {"target_language": string}
        own = numbers_of(self._task.params.decoding)
        texts = ["source_prefix", *([] if self._tags.on_target else ["target_prefix"])]
        defaults = own | dict.fromkeys(texts, "")
        self._options = {name: tf.constant(value) for name, value in defaults.items()}
        self.translate_with = function_of(self._translate_with, first | languages, self._options)
        self.score = function_of(self._score, first | {"translations": strings} | languages)
        self.translate = function_of(self._translate, first | languages)
        self.count_pieces = function_of(lambda texts: source.count(texts), {"texts": strings})
        self.count_target_pieces = function_of(
            lambda texts: target.count(texts), {"texts": strings}
        )
        self.about = function_of(self._about, {})

    def save(self, directory: Path) -> None:
        """Writes a SavedModel.

        Its signatures are `serving_default`, which is `translate`, `with_options`, which is
        `translate_with`, `score`, `count_pieces` and `count_target_pieces`.
        """
        signatures = {
            "serving_default": self.translate,
            "with_options": self.translate_with,
            "score": self.score,
            "count_pieces": self.count_pieces,
            "count_target_pieces": self.count_target_pieces,
        }
        tf.saved_model.save(self, str(directory), signatures=signatures)

    def _about(self):
        model_dir = self._model_dir
        return {
            "languages": tf.constant(sorted(model_dir.tags)),
            "source_languages": tf.constant(model_dir.source_languages, tf.string),
            "pairs": tf.constant(model_dir.translated_pairs, tf.string),
            "max_pieces": tf.constant(self._max_pieces),
            "part_pieces": tf.constant(part_pieces(model_dir.params)),
            "decomposed": tf.constant(model_dir.fitted.decomposed, tf.string),
            "options": self._options,
            "search": tf.constant(json.dumps(to_fields(model_dir.params.decoding))),
            **self._fitted,
        }

    def _translate(self, sentences, **languages):
        read = self._read_surface(sentences, languages)
        own = self._own_numbers(languages).items()
        params = self._request.params
        request = self._request.with_inputs(
            {name: number for name, number in own if getattr(params, name) is FROM_DATA}
        )
        return self._results(read, self._decode(beam_search, read, request), sentences, languages)

    def _translate_with(self, sentences, **given):
        options = checked_numbers({name: given.pop(name) for name in self._options})
        read = self._read_surface(sentences, given, options["source_prefix"])
        own = self._own_numbers(given).items()
        options |= {n: tf.where(options[n] < 0, number, options[n]) for n, number in own}
        output = self._decode(beam_search, read, self._request_of(options))
        words = ~surface.wordless(sentences)[:, None]
        real = tf.sequence_mask(output.lengths, tf.shape(output.ids)[2]) & words[:, None]
        return self._results(read, output, sentences, given) | {
            "tokens": tf.where(real, self._target.pieces(output.ids), ""),
            "log_probs": output.log_probs,
            "source": tf.where(words, read.pieces, ""),
            "aligned": output.sources - 1,  # without the tag
        }

    def _own_numbers(self, languages):
        """Name of each of FITTED -> its number of the target language, float32 []."""
        known = tf.constant(sorted(self._model_dir.tags))
        place = tf.argmax(tf.cast(known == languages["target_language"], tf.int32))
        return {name: tf.gather(numbers, place) for name, numbers in self._fitted.items()}

    def _request_of(self, options):
        """The Request of option tensors."""
        inputs = dict(options)
        if "target_prefix" in options:
            prefix = self._target.encode(rstrip(options["target_prefix"])[None]).values
            inputs["prefix"] = checked(
                prefix,
                tf.size(prefix) <= self._max_pieces,
                f"target_prefix has more than {self._max_pieces:,} tokens; give fewer words.",
            )
        return Request.of_tensors(inputs, self._request.spaces)

    def _score(self, sentences, translations, **languages):
        most = max(MAX_TOKENS, self._max_pieces)
        read = self._read(sentences, languages, limit=most)
        pieces = self._target.encode(translations)
        lengths = tf.cast(pieces.row_lengths(), tf.int32)
        lengths = checked(
            lengths,
            tf.reduce_all((read.left_out == 0) & (lengths <= most)),
            f"A source or a target has more than {most:,} tokens, the limit of what can be scored. "
            f"Split both sides into matching parts, and score each.",
        )
        ids = with_end(pieces.to_tensor(), lengths)
        real = tf.sequence_mask(lengths + 1, tf.shape(ids)[1])
        log_probs = self._decode(score_given, read, ids)
        return {
            "tokens": tf.where(real, self._target.pieces(ids), ""),
            "log_probs": tf.where(real, log_probs, 0.0),
        }

    def _decode(self, function, read, what):
        """beam_search for a request, or score_given for ids."""
        ids, lengths, first = split_request(self._tags, read.ids, read.lengths)
        more = read.tasks, self._tags.start, first
        return function(self._network, self._laid_out(), ids, lengths, what, *more)

    def _read_surface(self, sentences, languages, source_prefix=""):
        """Sentences as `Translator.read` reads them."""
        lowered = surface.lowered(sentences, languages.get("source_language"))
        sentences = tf.where(surface.shouted(sentences), lowered, sentences)
        return self._read(sentences, languages, source_prefix, limit=self._max_pieces)

    def _results(self, read, output, sentences, languages):
        n_best = size_of(output.lengths, 1)
        ids = tf.reshape(output.ids, [-1, tf.shape(output.ids)[2]])
        real = tf.sequence_mask(tf.reshape(output.lengths, [-1]), tf.shape(ids)[1])
        texts = self._target.decode(tf.ragged.boolean_mask(ids, real & (ids != EOS)))
        texts = tf.reshape(surface.one_line(texts), [-1, n_best])
        raised = surface.raised(texts, languages["target_language"])
        texts = tf.where(surface.shouted(sentences)[:, None], raised, texts)
        if decomposed := self._model_dir.fitted.decomposed:
            texts = surface.decomposed(texts, languages["target_language"], decomposed)
        wordless, copies = surface.wordless(sentences), surface.copies_of(sentences)
        return {
            "translations": tf.where(wordless[:, None], copies[:, None], texts),
            "scores": tf.where(wordless[:, None], 0.0, output.scores),
            "lengths": tf.where(wordless[:, None], 0, output.lengths),
            "left_out": tf.where(wordless, 0, read.left_out),
        }


@dataclasses.dataclass(frozen=True)
class SavedModel(Format):
    """A SavedModel and `translate.py`, a client that shows how to call it.

    The signature `serving_default` (also the method `translate`) takes strings and returns strings.
    Loading and calling it needs only TensorFlow and tensorflow-text.
    """

    has_client = can_be_read = True

    def write(self, model_dir, theta, step, directory):
        """Writes the SavedModel."""
        with quiet():  # SentencePiece logs its normalization
            module = ServedModel(model_dir, theta, self.storage)
        module.save(directory)


def _variable(array: np.ndarray | tf.Tensor | None) -> tf.Variable | None:
    return None if array is None else tf.Variable(array, trainable=False)
