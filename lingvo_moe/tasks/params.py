"""The params of a translation model: all that is registered under its name."""

import dataclasses
import math
from typing import Any, Literal

from lingvo_moe.config.fields import FromData, Params, PositiveFloat, PositiveInt, Rate
from lingvo_moe.config.patterns import Pattern
from lingvo_moe.data.language_tags import LanguageTags, OnSource
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.decoding.params import BeamSearchParams
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.sbp.params import ShardingParams
from lingvo_moe.sbp.types import Mesh, Rules, axes_of
from lingvo_moe.training.adafactor import Adafactor
from lingvo_moe.training.optimizer import Optimizer
from lingvo_moe.training.train_params import TrainParams


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeParams(Params):
    """Numbers of the rules that fill params which are FROM_DATA; see tasks.recipe.

    Attributes:
        batch_tokens: target tokens of a step whose rows are full on one side. The padding of the
            other side is not counted.
        epochs: of the pair with most lines, if the steps are within the limits.
        most_tokens: largest number of target tokens of a run, unless that is too short to learn to
            translate.
        evaluations: number of evaluations and checkpoints of a run.
    """

    batch_tokens: PositiveInt = 2048
    epochs: PositiveFloat = 5.0
    most_tokens: PositiveInt = 11_000_000
    evaluations: PositiveInt = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitParams(Params):
    """The source of the initial weights; it is not read again when training resumes.

    Attributes:
        logdir: its logdir, or an export with weights; "" to draw all weights.
        step: of its checkpoint; None for the best.
        redraw: patterns of the paths of weights that are drawn although the other model has them.
        relatives: (language, known language), …: the tag and the tasks of a new language start as
            those of the known one. Other new tags start as the mean of all tags; other new tasks
            are drawn.
    """

    logdir: str = ""
    step: PositiveInt | None = None
    redraw: tuple[Pattern, ...] = ()
    relatives: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationParams(Params):
    """The params of a registered model.

    Attributes:
        model: the shape of the network.
        source_vocab_size, target_vocab_size: rows of the embedding tables; the vocabularies of a
            dataset may be smaller.
        language_tags: the places of language tags, on the source or on both sides.
        recipe: numbers of the rules that fill params which are FROM_DATA.
        input: batches and the sampling of pairs.
        optimizer: the optimizer and its schedule.
        train: the length of training, evaluations and checkpoints.
        decoding: beam search.
        init: where the initial weights come from.
        label_smoothing: ε of the training loss.
        sharding: how the model is split over the devices of a mesh.
        activation_dtype: "float32" or "bfloat16"; weights and losses are always float32.
    """

    model: TransformerParams
    source_vocab_size: PositiveInt | FromData
    target_vocab_size: PositiveInt | FromData
    recipe: RecipeParams = RecipeParams()
    language_tags: LanguageTags = OnSource()
    input: InputParams = InputParams()
    optimizer: Optimizer = Adafactor()
    train: TrainParams = TrainParams()
    decoding: BeamSearchParams = BeamSearchParams()
    init: InitParams = InitParams()
    sharding: ShardingParams = ShardingParams()
    label_smoothing: Rate = 0.1
    activation_dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def joint_vocab(self) -> bool:
        """Whether source and target need a common vocabulary.

        They do if they share an embedding table, or if the tag of a language has the same id on
        both sides.
        """
        return self.model.shared_embedding or self.language_tags.on_target

    def with_moe(self, **changes: Any) -> "TranslationParams":
        """The same model with other values of these fields of MoEParams. Raises ValueError: the
        model is dense, or a value breaks a rule."""
        if self.model.moe is None:
            raise ValueError(
                f"{', '.join(changes)} cannot be set: this model is dense and has no experts."
            )
        moe = dataclasses.replace(self.model.moe, **changes)
        return dataclasses.replace(self, model=dataclasses.replace(self.model, moe=moe))

    def check_groups(self) -> None:
        """Checks that the tokens of a training batch divide into groups. Raises ValueError: they
        do not."""
        rows, groups = self.input.batch_size // self.train.micro_batches, 1
        if self.model.moe:
            groups = self.model.moe.training.groups
        for length in (self.input.source_length, self.input.target_length):
            if rows * length % groups:
                raise ValueError(
                    f"{rows} x {length} = {rows * length} tokens do not divide into "
                    f"model.moe.training.groups={groups}; change the batch or the groups."
                )

    def check_mesh(self, mesh: Mesh, rules: Rules) -> None:
        """Checks that the model can be trained on a mesh; rules are letter -> axes in use. Raises
        ValueError: rows, groups or experts do not divide into equal pieces, or a policy does not
        suit the mesh."""
        rows, experts, places = (mesh.size(axes_of(letter, rules)) for letter in "BEg")
        moe, given = self.model.moe, self.input.batch_size / self.train.micro_batches
        if given % rows:
            raise ValueError(
                f"input.batch_size / train.micro_batches ({given:g}) must be a multiple of {rows}, "
                f"the pieces into which the mesh splits rows."
            )
        if not moe or math.prod(mesh.shape) == 1:
            return
        for one in (moe, moe.of_decoder()):
            on = one.num_experts, experts, places
            one.training.check_mesh(*on, "model.moe.training")
            if one.evaluation.capacity_factor:
                one.evaluation.check_mesh(*on, "model.moe.evaluation")
