"""A logdir: one model, the vocabularies it was trained with, its checkpoints."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from lingvo_moe.core import registry
from lingvo_moe.core.nested_map import NestedMap
from lingvo_moe.core.params import override, to_text
from lingvo_moe.data.dataset import Dataset
from lingvo_moe.data.vocabulary import Vocabulary
from lingvo_moe.tasks.translation import TranslationParams, TranslationTask
from lingvo_moe.train.checkpoint import Checkpoint, Checkpointer
from lingvo_moe.train.replicas import slots_of

_FILE = "model.json"


@dataclasses.dataclass(frozen=True)
class ModelDir:
    """What decoding, evaluation and export need to know of a trained model; no dataset needed.

    Attributes:
        path: the logdir.
        model: the registered model's name.
        overrides: the `--set` texts it was trained with.
        pairs: names of the language pairs of its dataset, in the dataset's order.
        tags: language -> id of the source token that asks for that target language.
        hashes: "source" and "target" -> SHA-256 of the vocabulary.
    """

    path: Path
    model: str
    overrides: tuple[str, ...]
    pairs: tuple[str, ...]
    tags: dict[str, int]
    hashes: dict[str, str]

    @staticmethod
    def create(path: Path, model: str, overrides: Sequence[str], dataset: Dataset) -> "ModelDir":
        """Makes a logdir for training, or checks that the one there is of this model and data.

        Raises:
            ValueError: the logdir is of another model or other data, or the dataset's vocabularies
                do not fit the model.
        """
        made = ModelDir(
            path,
            model,
            tuple(overrides),
            tuple(pair.name for pair in dataset.pairs),
            dict(dataset.tags),
            {
                "source": dataset.source_vocabulary.sha256,
                "target": dataset.target_vocabulary.sha256,
            },
        )
        made._check_vocabularies(dataset)
        if (path / _FILE).exists():
            there = ModelDir.open(path, model)
            there.check_dataset(dataset)
            made._check_same_weights(there)
        made._write(dataset)
        return made

    @staticmethod
    def open(path: Path, model: str | None = None) -> "ModelDir":
        """Reads a logdir.

        Raises:
            ValueError: it is not a logdir, or it is of another model than the one named.
        """
        try:
            fields = json.loads((path / _FILE).read_text())
        except OSError as error:
            raise ValueError(
                f"{path} is no logdir: it has no {_FILE}. Train a model there first."
            ) from error
        if model is not None and fields["model"] != model:
            raise ValueError(
                f"Logdir {path} is of model {fields['model']!r}, not {model!r}; give another "
                f"--logdir or --model={fields['model']}."
            )
        return ModelDir(
            path,
            fields["model"],
            tuple(fields["overrides"]),
            tuple(fields["pairs"]),
            fields["tags"],
            fields["vocabularies"],
        )

    def check_dataset(self, dataset: Dataset) -> None:
        """Makes sure that a dataset speaks in this model's ids.

        Raises:
            ValueError: another vocabulary, or other language pairs in training.
        """
        for side in ("source", "target"):
            theirs = getattr(dataset, f"{side}_vocabulary").sha256
            if theirs != self.hashes[side]:
                raise ValueError(
                    f"The {side} vocabulary of dataset {dataset.directory} (SHA-256 "
                    f"{theirs[:12]}…) is not the one that {self.path} was trained with "
                    f"({self.hashes[side][:12]}…). Use the dataset that it was trained on."
                )
        names = tuple(pair.name for pair in dataset.pairs)
        if names != self.pairs:
            raise ValueError(
                f"Dataset {dataset.directory} has pairs {', '.join(names)}; {self.path} was "
                f"trained on {', '.join(self.pairs)}."
            )

    @functools.cached_property
    def params(self) -> TranslationParams:
        """The registered params with this logdir's overrides."""
        return override(registry.get_params(self.model), self.overrides)

    def with_overrides(self, overrides: Sequence[str]) -> "ModelDir":
        """The same logdir read with further `--set` texts, such as another beam size."""
        return dataclasses.replace(self, overrides=(*self.overrides, *overrides))

    @property
    def task(self) -> TranslationTask:
        """The model's task."""
        pieces = self.vocabulary("target").size
        return TranslationTask(self.params, self.pairs, pieces)

    @property
    def checkpoints(self) -> Checkpointer:
        """Its checkpoints."""
        return Checkpointer(self.path / "checkpoints", self.params.train.keep_checkpoints)

    @property
    def routing_path(self) -> Path:
        """Where each evaluation on dev leaves its RoutingRecord."""
        return self.path / "routing.npz"

    def tag(self, language: str) -> int:
        """The id of the source token that asks for a target language.

        Raises:
            ValueError: the model does not translate into it.
        """
        if language not in self.tags:
            raise ValueError(
                f"This model does not translate into {language!r}; it knows "
                f"{', '.join(sorted(self.tags))}."
            )
        return self.tags[language]

    def vocabulary(self, side: str) -> Vocabulary:
        """The "source" or "target" vocabulary."""
        return Vocabulary.load(self.path / f"{side}.model")

    def read_checkpoint(
        self, step: int | None = None, use: Callable[[Checkpoint], None] = lambda checkpoint: None
    ) -> Checkpoint:
        """The checkpoint of a step, by default the best.

        Args:
            step: which one; None for the best.
            use: takes what it needs from the tensors, which a running training may remove later.

        Raises:
            ValueError: there is none yet.
            OSError: it is damaged.
        """
        if not self.checkpoints.steps():
            raise ValueError(f"{self.path} has no checkpoint yet; train the model first.")
        return self.checkpoints.read(step, use)

    def _check_vocabularies(self, dataset):
        if self.params.model.shared_embedding and len(set(self.hashes.values())) > 1:
            raise ValueError(
                f"{self.model} shares one embedding between source and target, and the dataset "
                f"has two vocabularies. Prepare it with --joint_vocab, or pass "
                f"--set=model.shared_embedding=False."
            )
        for side in ("source", "target"):
            size = getattr(dataset, f"{side}_vocabulary").size
            room = getattr(self.params, f"{side}_vocab_size")
            if size > room:
                raise ValueError(
                    f"The dataset's {side} vocabulary has {size} pieces; {self.model} has room "
                    f"for {room}. Pass --set={side}_vocab_size={size}, or prepare the data with "
                    f"--{side}_vocab_size={room}."
                )

    def _check_same_weights(self, there):
        theirs = {n: w.shape for n, w in TranslationTask(there.params).weights().flatten()}
        task = TranslationTask(self.params)
        free = {f"theta/{table}" for table in task.placements}
        for (
            table
        ) in task.placements:  # experts in slots lie as they are found: replicas.relocate_experts
            free |= set(slots_of(table, task.weights(), NestedMap()))
        for name, spec in task.weights().flatten():
            if f"theta/{name}" not in free and theirs.get(name) != spec.shape:
                raise ValueError(
                    f"Weight {name!r} is {spec.shape} here and {theirs.get(name)} in {self.path}. "
                    f"Give the --set texts it was trained with ({' '.join(there.overrides)}), or "
                    f"another --logdir."
                )

    def _write(self, dataset):
        self.path.mkdir(parents=True, exist_ok=True)
        for side in ("source", "target"):
            getattr(dataset, f"{side}_vocabulary").save(self.path / f"{side}.model")
        fields = {
            "model": self.model,
            "overrides": self.overrides,
            "pairs": self.pairs,
            "tags": self.tags,
            "vocabularies": self.hashes,
        }
        (self.path / _FILE).write_text(json.dumps(fields, indent=1, ensure_ascii=False))
        (self.path / "params.txt").write_text(to_text(self.params))
