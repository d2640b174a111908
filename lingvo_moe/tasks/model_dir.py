"""A logdir: one model with its vocabularies and checkpoints."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lingvo_moe.config import plugins, registry
from lingvo_moe.config.fields import check_fields
from lingvo_moe.config.params import check_readable, evolve, override, to_fields
from lingvo_moe.data.dataset import SIDES, Dataset, check_pair_name
from lingvo_moe.data.mixture import identity
from lingvo_moe.data.prepare_pair import digest_of
from lingvo_moe.data.vocabulary import Vocabulary
from lingvo_moe.decoding.fitted import UNFITTED, Fitted
from lingvo_moe.system.files import MANIFEST, read_json, write_whole
from lingvo_moe.system.lines import first_of
from lingvo_moe.tasks.languages import (
    check_source_language,
    check_target_language,
    source_languages,
)
from lingvo_moe.tasks.model_json import FILE, FORMAT, plugins_of, read_fields, read_params
from lingvo_moe.tasks.model_weights import WEIGHTS, read_weights
from lingvo_moe.tasks.param_changes import AFTER_TRAINING, COMPARING, RESUMING
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.recipe import Chosen, check_filled, recipe, with_values, with_values_of
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.training.averaging import averaged
from lingvo_moe.training.checkpoint import Checkpoint, Checkpointer

# Params that change speed alone.
_OF_SPEED = ("decoding.batch_tokens", "decoding.separate_caches_from")
_PENALTIES = "length_penalties.json"  # step and params of decoding -> a part of a Fitted


@dataclasses.dataclass(frozen=True)
class ModelDir:
    """A trained model without its dataset, for decoding, evaluation and export."""

    path: Path  # the logdir
    model: str  # the registered name at the time of training; only a label
    params: TranslationParams  # of the model, read from the logdir and not from the registry
    pairs: tuple[str, ...]  # names of the language pairs of its dataset, in the dataset's order
    # language -> id of its tag, the source token that selects the target language
    tags: dict[str, int]
    vocabularies: dict[str, Vocabulary]  # "source" and "target" -> the vocabulary
    data: str | None  # SHA-256 of the dataset; None if it is unknown, as of an imported model
    # modules and files outside this package that define the model or its policies, with the SHA-256
    # of their source; they are imported when the logdir is opened
    imports: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # pairs with training text, and those of init.logdir, whose tasks are copied; () if unknown, as
    # in logdirs of earlier versions
    seen_pairs: tuple[str, ...] = ()
    # values of params of decoding that are FROM_DATA; those of a checkpoint in `at_step`
    fitted: Fitted = UNFITTED
    chosen: tuple[Chosen, ...] = ()  # the params that `for_training` has filled from the data

    @staticmethod
    def for_training(
        path: Path,
        model: str,
        overrides: Sequence[str],
        dataset: Dataset,
        params: TranslationParams | None = None,
    ) -> "ModelDir":
        """A logdir for training. Nothing is written before `save`.

        If it exists, its params are used, and overrides (`--set` texts) may change neither the
        model's function nor the order of the data. Otherwise they are `params`, or those of the
        registered model.

        Raises ValueError: the logdir is of another model, params or data, the dataset's
        vocabularies do not fit the model, or path holds results of another tool.
        """
        there = ModelDir.open(path, model) if (path / FILE).exists() else None
        if there and there.weights_path.exists():
            raise ValueError(
                f"{path} is an export without checkpoints to resume; give another --logdir."
            )
        if there:
            params = there._params_to_resume(overrides, params)
        else:
            params = ModelDir.params_for_training(path, model, overrides, params)
        chosen = recipe(dataset, params)
        params = with_values(params, chosen)
        check_readable(params)
        data = identity(dataset, params.input.corpora)
        if there:
            there.check_dataset(dataset)
            if there.data is not None and there.data != data:
                raise ValueError(
                    f"Dataset {dataset.directory} is not the one that {path} was trained on: its "
                    f"contents have the SHA-256 {data[:12]}…, not {there.data[:12]}…. Give the "
                    f"same --data, or another --logdir to train on these."
                )
            kept = {n: at for n, at in there.imports.items() if not plugins.is_moved(n)}
            return dataclasses.replace(
                there, params=params, chosen=chosen, data=data, imports=kept | plugins_of(params)
            )
        seen = list(params.input.mixture(dataset).examples)
        if params.init.logdir:
            first = ModelDir.open(Path(params.init.logdir))
            seen += first.task.trained_pairs
        made = ModelDir(
            path,
            model,
            params,
            tuple(pair.name for pair in dataset.pairs),
            dict(dataset.tags),
            {side: getattr(dataset, f"{side}_vocabulary") for side in SIDES},
            data,
            plugins_of(params),
            seen_pairs=tuple(dict.fromkeys(seen)),
            fitted=Fitted(ratios=dataset.length_ratios, decomposed=dataset.decomposed),
            chosen=chosen,
        )
        made._check_vocabularies()
        made._check_tags(dataset)
        check_new_logdir(path, made.vocabularies)
        return made

    @staticmethod
    def params_for_training(
        path: Path, model: str, overrides: Sequence[str], params: TranslationParams | None = None
    ) -> TranslationParams:
        """The params of `for_training`, which needs a dataset too and fills those FROM_DATA.
        Raises ValueError: as `for_training`."""
        if (path / FILE).exists():
            return ModelDir.open(path, model)._params_to_resume(overrides, params)
        return _overridden(params or registry.get_params(model), overrides)

    def _params_to_resume(self, overrides, params):
        given = with_values_of(params, self.params) if params else self.params
        wanted = _overridden(given, overrides)
        self._check_changes(RESUMING, wanted)
        return wanted

    def check_made_with(
        self, overrides: Sequence[str], dataset: Dataset, params: TranslationParams | None = None
    ) -> None:
        """Checks that a new logdir, by the arguments of `for_training`, would have the params of
        this one. Those that do not change the model's function may differ. Raises ValueError:
        another one differs."""
        new = _overridden(params or registry.get_params(self.model), overrides)
        self._check_changes(COMPARING, with_values(new, recipe(dataset, new)))

    def _check_changes(self, allowed, wanted):
        moved = self.params.input.with_corpora_at(wanted.input.corpora)
        allowed.check(self.path, evolve(self.params, "input", moved), wanted)

    @staticmethod
    def create(path: Path, model: str, overrides: Sequence[str], dataset: Dataset) -> "ModelDir":
        """`for_training`, saved."""
        made = ModelDir.for_training(path, model, overrides, dataset)
        made.save()
        return made

    @staticmethod
    def open(path: Path, model: str | None = None) -> "ModelDir":
        """Reads a logdir. Raises ValueError: it is not a logdir, it is damaged, or it is of
        another model than the one named."""
        fields = read_fields(path, model)
        params = read_params(path, fields)
        for pair in (*fields["pairs"], *fields["seen_pairs"]):
            check_pair_name(pair)
        hashes = fields["vocabularies"]
        check_fields(hashes, dict.fromkeys(SIDES, str), f"{path / FILE}: vocabularies")
        vocabularies = {s: Vocabulary.load(path / f"{s}.model", hashes[s]) for s in SIDES}
        for language, tag in fields["tags"].items():
            if not 0 <= tag < vocabularies["source"].size:
                raise ValueError(
                    f"{path / FILE}: the tag of {language!r} is {tag}; the source vocabulary has "
                    f"ids 0 to {vocabularies['source'].size - 1}. Restore the file."
                )
        return ModelDir(
            path,
            fields["model"],
            params,
            tuple(fields["pairs"]),
            fields["tags"],
            vocabularies,
            fields.get("dataset") or None,
            fields["plugins"],
            tuple(fields["seen_pairs"]),
            Fitted(**fields.get("fitted", {})),
        )

    def save(self) -> None:
        """Writes vocabularies and model.json; existing files stay unchanged. Raises OSError:
        they cannot be written."""
        fields = {
            "format": FORMAT,
            "model": self.model,
            "pairs": self.pairs,
            "tags": self.tags,
            "vocabularies": self.hashes,
            "dataset": self.data or "",
            "seen_pairs": self.seen_pairs,
            "plugins": dict(self.imports),
            "fitted": dataclasses.asdict(self.fitted),
            "params": to_fields(self.params),
        }
        text = json.dumps(fields, indent=1, ensure_ascii=False)
        contents = {f"{side}.model": v.model_bytes for side, v in self.vocabularies.items()}
        # The last one, because this file makes the directory a logdir.
        contents[FILE] = text.encode("utf-8")
        self.path.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = self.path / name
            if not path.is_file() or path.read_bytes() != content:
                write_whole(path, content)

    def check_dataset(self, dataset: Dataset) -> None:
        """Checks that a dataset has this model's vocabularies and tags. Raises ValueError: the
        vocabularies or the sides with tags differ."""
        for side in SIDES:
            theirs = dataset.hashes[side]
            if theirs != self.hashes[side]:
                raise ValueError(
                    f"The {side} vocabulary of dataset {dataset.directory} is not the one that "
                    f"{self.path} was trained with. Prepare the text with --extend={self.path}."
                )
        self._check_tags(dataset)

    def for_test_set(self, dataset: Dataset) -> tuple["ModelDir", Dataset]:
        """This model, with the pairs of the dataset if it has none (imported models), and the
        dataset with only the pairs that the model has, numbered as the model does. Raises
        ValueError: the vocabularies or the sides with tags differ, or no pair is the model's."""
        self.check_dataset(dataset)
        if not self.pairs:
            names = tuple(pair.name for pair in dataset.pairs)
            return dataclasses.replace(self, pairs=names), dataset
        pairs = tuple(
            dataclasses.replace(pair, index=self.pairs.index(pair.name))
            for pair in dataset.pairs
            if pair.name in self.pairs
        )
        if not pairs:
            raise ValueError(
                f"Dataset {dataset.directory} has the pairs "
                f"{first_of([pair.name for pair in dataset.pairs])}, and {self.path} translates "
                f"{first_of(self.pairs)}. Give data with one of its pairs."
            )
        return self, dataclasses.replace(dataset, pairs=pairs)

    def with_overrides(self, overrides: Sequence[str]) -> "ModelDir":
        """The same logdir read with `--set` texts, such as another beam size. Raises ValueError:
        malformed texts, or one that would change the trained function."""
        wanted = override(self.params, overrides)
        check_filled(wanted)
        AFTER_TRAINING.check(self.path, self.params, wanted)
        return dataclasses.replace(self, params=wanted)

    def at_step(self, step: int) -> "ModelDir":
        """The same with the length penalties of a checkpoint, if they have been fitted; else with
        those of its fit for another search."""
        fits = self._penalties()
        of_step = (fit for key, fit in fits.items() if key.startswith(f"{step} "))
        found: dict[str, Any] = fits.get(self._penalties_key(step)) or next(of_step, {})
        return dataclasses.replace(self, fitted=dataclasses.replace(self.fitted, **found))

    def has_penalties(self, step: int) -> bool:
        """Whether the length penalties of a checkpoint have been fitted; an export has its own."""
        has_own = self.weights_path.exists() and bool(self.fitted.expected)
        return has_own or self._penalties_key(step) in self._penalties()

    def save_penalties(self, step: int, fitted: Fitted) -> None:
        """Writes the length penalties of a checkpoint, which may be saved later."""
        kept = {f"{number} " for number in (*self.checkpoints.steps(), step)}
        found = {k: v for k, v in self._penalties().items() if k[: k.index(" ") + 1] in kept}
        names = ("penalty", "penalties", "expected")
        values = {name: dataclasses.asdict(fitted)[name] for name in names}
        text = json.dumps(found | {self._penalties_key(step): values}, indent=1)
        write_whole(self.path / _PENALTIES, text)

    def _penalties(self) -> dict[str, Any]:
        path = self.path / _PENALTIES
        return read_json(path) if path.exists() else {}

    def _penalties_key(self, step: int) -> str:
        decoding = [
            f"{name.removeprefix('decoding.')}={value}"
            for name, value in to_fields(self.params).items()
            if name.startswith("decoding.") and not name.startswith(_OF_SPEED)
        ]
        return " ".join([str(step), *decoding])

    @property
    def hashes(self) -> dict[str, str]:
        """ "source" and "target" -> SHA-256 of the vocabulary."""
        return {side: vocabulary.sha256 for side, vocabulary in self.vocabularies.items()}

    @property
    def task(self) -> TranslationTask:
        """The model's task."""
        pieces = self.vocabulary("target").size
        return TranslationTask(self.params, self.pairs, pieces, seen_pairs=self.seen_pairs)

    @property
    def checkpoints(self) -> Checkpointer:
        """Its checkpoints."""
        return Checkpointer(self.path / "checkpoints")

    @property
    def routing_path(self) -> Path:
        """The file of the RoutingRecord that each evaluation on dev writes."""
        return self.path / "routing.npz"

    @property
    def weights_path(self) -> Path:
        """The file of the weights in an export, which has no checkpoints."""
        return self.path / WEIGHTS

    def tag(self, language: str) -> int:
        """The id of the tag of a target language. Raises ValueError: the model does not
        translate into it."""
        check_target_language(language, self.tags)
        return self.tags[language]

    @property
    def source_languages(self) -> list[str]:
        """The languages that a source can have; [] if they are unknown."""
        return source_languages((*self.pairs, *self.seen_pairs), self.tags)

    @property
    def translated_pairs(self) -> tuple[str, ...]:
        """The pairs of `input.pairs`, or all of the model if it names none, without those that a
        router by task has no experts for."""
        pairs, task = self.params.input.pairs or self.pairs, self.task
        return tuple(pair for pair in pairs if task.has_experts_for(pair))

    @property
    def scored_pairs(self) -> tuple[str, ...]:
        """The pairs that are scored where none are named: all, or those that an export kept."""
        return self.translated_pairs if self.weights_path.exists() else self.pairs

    @property
    def some_languages(self) -> tuple[str, str]:
        """Source and target languages that the model translates."""
        pairs = self.translated_pairs
        source, target = pairs[0].split("-") if pairs else (min(self.tags), max(self.tags))
        return source, target

    def prefix(self, source_language: str | None, target_language: str) -> list[int]:
        """What stands in front of a sentence to translate; the source language is None if it is not
        known and not needed. Raises ValueError: the model does not know a language, or needs the
        source's."""
        tags = self.params.language_tags
        target = source = self.tag(target_language)
        check_source_language(source_language, self.source_languages)
        if tags.needs_source_language:
            if source_language is None:
                raise ValueError(
                    "This model needs the language of its sources: give source_language."
                )
            source = self.tag(source_language)
        return tags.prefix(source, target)

    def vocabulary(self, side: str) -> Vocabulary:
        """The "source" or "target" vocabulary."""
        return self.vocabularies[side]

    def read_checkpoint(
        self, step: int | None = None, use: Callable[[Checkpoint], None] = lambda checkpoint: None
    ) -> Checkpoint:
        """The checkpoint of a step, by default the best, with the moving average of its weights; or
        the weights of an export. `use` reads the tensors, because a running training may delete the
        checkpoint later. Raises ValueError: there is none, or none of that step, or the weights of
        an export are damaged; OSError: the checkpoint is damaged."""
        if self.weights_path.exists():
            checkpoint = read_weights(self.weights_path, step)
            use(checkpoint)
            return checkpoint
        if not (steps := self.checkpoints.steps()):
            raise ValueError(f"{self.path} has no checkpoint yet; train the model first.")
        if step is not None and step not in steps:
            raise ValueError(
                f"{self.path} has no checkpoint of step {step}, but {', '.join(map(str, steps))}."
            )

        def of_average(checkpoint):
            return dataclasses.replace(checkpoint, tensors=averaged(checkpoint.tensors))

        return of_average(self.checkpoints.read(step, lambda found: use(of_average(found))))

    def fingerprint(self, step: int) -> dict[str, str]:
        """Name -> value of all that translations by a checkpoint depend on: params, and SHA-256 of
        a file."""
        exported = self.weights_path.exists()  # an index has a checksum of each tensor
        file = self.weights_path if exported else self.checkpoints.index(step)
        params = to_fields(self.params).items()
        return {
            "step": str(step),
            "file": digest_of(file),
            "fitted": str(self.at_step(step).fitted),
        } | {name: text for name, text in params if not name.startswith(_OF_SPEED)}

    def _check_tags(self, dataset):
        if dataset.tags_on_both_sides != (tags := self.params.language_tags).on_target:
            raise ValueError(
                f"The model has language_tags={tags}, and dataset {dataset.directory} is not for "
                f"it. Prepare it again with --{'' if tags.on_target else 'no'}tags_on_both_sides."
            )

    def _check_vocabularies(self):
        if self.params.model.shared_embedding and len(set(self.hashes.values())) > 1:
            raise ValueError(
                f"{self.model} has one embedding for both sides; prepare the dataset with "
                f"--joint_vocab, or pass --set=model.shared_embedding=False."
            )
        sizes = {f"{side}_vocab_size": one.size for side, one in self.vocabularies.items()}
        rooms = {name: getattr(self.params, name) for name in sizes}
        if large := [name for name in sizes if sizes[name] > rooms[name]]:
            flags = " ".join(f"--set={name}={sizes[name]}" for name in large)
            raise ValueError(
                f"The dataset has more pieces than {self.model} has room for; pass {flags}."
            )


def _overridden(params, overrides):
    made = override(params, overrides)
    return evolve(made, "input", made.input.with_absolute_paths())


def check_new_logdir(path: Path, vocabularies: Mapping[str, Vocabulary] | None = None) -> None:
    """Checks that a path is a logdir, or holds nothing that could be taken for parts of one.

    Allowed is what an interrupted first start leaves: an empty `checkpoints`, and the model's
    vocabularies (of any contents before the data are read). Raises ValueError: other checkpoints or
    vocabularies, or results of another tool, are there.
    """
    if (path / FILE).exists():
        return
    if "[" in str(path.absolute()):  # TensorFlow reads it as a pattern
        raise ValueError(f"Checkpoints in {path} could not be read: give a path without '['.")
    found = [one for one in (path / MANIFEST, *path.glob("checkpoints/*")) if one.exists()]
    for side, vocabulary in (vocabularies or {}).items():
        file = path / f"{side}.model"
        if file.exists() and file.read_bytes() != vocabulary.model_bytes:
            found.append(file)
    if found:
        raise ValueError(
            f"{path} is no logdir: it has no {FILE}, but {first_of([one.name for one in found])}. "
            f"Give the name of a new directory as --logdir."
        )
