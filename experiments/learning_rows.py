"""The runs of learning.py: the rows of studies."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lingvo_moe.config.fields import Params, PositiveFloat
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.tasks.recipe import registered

_LONG = 4000  # steps
_ADAFACTOR, _MUON = "Adafactor()", "Muon(iterations=3)"


def _vocabulary(size: int) -> tuple[str, str]:
    return f"source_vocab_size={size}", f"target_vocab_size={size}"


@dataclasses.dataclass(frozen=True)
class Peer(Params):
    """Hugging Face's M2M-100 of small.Dense's size, with AdamW.

    Attributes:
        learning_rate: the largest learning rate of the schedule.
    """

    learning_rate: PositiveFloat


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A model that is trained once for each seed.

    Attributes:
        name: STUDY/ROW; it names the files of results.
        model: a registered model.
        overrides: values of `--set`.
        steps: number of training steps; the learning rate falls to 0 over them.
        rate: the largest learning rate.
        optimizer: as for `--set`, without its schedule; None for that of the model.
        data: a name of learning_data.CORPORA.
        seeds: seeds of weights and batches.
        searches: name -> values of `--set` for the decoding; {} for none.
        splits: the splits to translate.
        peer: a model of another package, which is trained instead of `model`.
        until_source_use: training ends when the source use, in nats per token (see
            lingvo_moe.jobs.source_use), is at least this; None to train all steps.
    """

    name: str
    model: str = "small.MoE"
    overrides: Sequence[str] = ()
    steps: int = _LONG
    rate: float = 0.03
    optimizer: str | None = None
    data: str = "tldr"
    seeds: Sequence[int] = (1,)
    searches: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=lambda: {"beam": ()})
    splits: Sequence[str] = ("dev",)
    peer: Peer | None = None
    until_source_use: float | None = None

    @property
    def study(self) -> str:
        """The first part of the name."""
        return self.name.partition("/")[0]

    @property
    def label(self) -> str:
        """The second part of the name."""
        return self.name.partition("/")[2]

    @property
    def all_overrides(self) -> list[str]:
        """The optimizer and the steps as `--set` texts, then `overrides`."""
        warmup = self.steps // 10
        return [
            *([f"optimizer={self.optimizer}"] if self.optimizer else ()),
            f"optimizer.schedule=Cosine(learning_rate={self.rate},warmup_steps={warmup},"
            f"total_steps={self.steps})",
            f"train.max_steps={self.steps}",
            *self.overrides,
        ]

    @property
    def params(self) -> TranslationParams:
        """The params of the model and its training."""
        return registered(self.model, self.all_overrides)

    @property
    def command(self) -> str:
        """The command that trains the same model."""
        return " ".join(
            ["lingvo-moe-train", f"--model={self.model}", f"--data={self.data}"]
            + [f'--set="{text}"' for text in self.all_overrides]
        )


def _scale(name: str, *overrides: str, **fields: Any) -> Row:
    """A tiny model on the synthetic languages: minutes on two cores."""
    given: dict[str, Any] = {"model": "tiny.MoE", "optimizer": _MUON, "steps": 600}
    given |= {"seeds": (1, 2), "splits": ("dev", "test")}
    return Row(
        name=f"scale/{name}",
        overrides=("train.eval_every=50", *overrides),
        data="synthetic",
        **(given | fields),
    )


def _layers(count: int) -> tuple[str, str]:
    return f"model.num_encoder_layers={count}", f"model.num_decoder_layers={count}"


_SCALE = (
    _scale("8 experts, 2 + 2 layers"),
    _scale("4 experts", "model.moe.num_experts=4"),
    _scale("16 experts", "model.moe.num_experts=16"),
    _scale("64 experts", "model.moe.num_experts=64"),
    _scale("4 + 4 layers", *_layers(4)),
    _scale("6 + 6 layers", *_layers(6)),
    _scale("dense", model="tiny.Dense"),
    _scale("dense, H x 1.5: equal FLOPs", "model.hidden_dim=768", model="tiny.Dense"),
)
# Whether the best learning rate depends on the depth of the model.
_RATES = [
    dataclasses.replace(
        _scale(f"{count} + {count} layers, rate {rate}", *_layers(count)),
        name=f"rates/{count} + {count} layers, rate {rate}",
        rate=rate,
        seeds=(1,),
        splits=("dev",),
    )
    for count, rate in ((2, 0.015), (2, 0.06), (4, 0.06))
]


_REAL_TEXT = (*_vocabulary(4000), "model.shared_embedding=True", "input.temperature=2.0")


_PEER = "M2M-100"
# (corpus, millions of target tokens, optimizer or peer) -> the largest learning rate of each run.
_RATES_BESIDE_PEER = {
    ("tldr", 1, "Adafactor"): (0.015, 0.03, 0.06),
    ("tldr", 1, "Muon"): (0.015, 0.03, 0.06),
    ("tldr", 1, _PEER): (0.001, 0.002, 0.004),
    ("tldr", 3, "Muon"): (0.03,),
    ("tldr", 3, _PEER): (0.002, 0.004),
    ("tldr", 10, "Muon"): (0.03,),
    ("tldr", 10, _PEER): (0.002, 0.004),
    ("wikimessages", 1, "Muon"): (0.015, 0.03),
    ("wikimessages", 1, _PEER): (0.002, 0.004),
    ("wikimessages", 3, "Muon"): (0.03,),
    ("wikimessages", 3, _PEER): (0.002, 0.004),
    ("wikimessages", 10, "Muon"): (0.03,),
    ("wikimessages", 10, _PEER): (0.002, 0.004),
    ("both", 1, "Muon"): (0.03,),
    ("both", 1, _PEER): (0.002, 0.004),
    ("both", 3, "Muon"): (0.03,),
    ("both", 3, _PEER): (0.002, 0.004),
    ("both", 10, "Muon"): (0.03,),
    ("both", 10, _PEER): (0.002, 0.004),
}


def _beside_peer(data: str, millions: int, learner: str, rate: float) -> Row:
    """tiny.Dense or a peer of its size; a thousand steps have about a million target tokens."""
    steps = 1000 * millions
    given: dict[str, Any] = {"peer": Peer(rate)} if learner == _PEER else {"rate": rate}
    return Row(
        name=f"peer/{data}, {millions}M tokens, {learner}, rate {rate}",
        model="tiny.Dense",
        data=f"{data}4k",
        steps=steps,
        optimizer=_MUON if learner == "Muon" else None,
        overrides=(*_REAL_TEXT, f"train.eval_every={min(1000, steps // 5)}"),
        searches={},
        **given,
    )


_PEERS = [_beside_peer(*case, rate) for case, rates in _RATES_BESIDE_PEER.items() for rate in rates]


def _recipe(name: str, *overrides: str, **fields: Any) -> Row:
    """A variant of tiny.Dense on 38 pairs of real text; a run takes minutes on two cores."""
    given: dict[str, Any] = {"model": "tiny.Dense", "data": "tldr4k", "steps": 1000}
    given |= {"optimizer": _MUON}
    return Row(
        name=f"recipe/{name}",
        overrides=(*_REAL_TEXT, "train.eval_every=200", *overrides),
        **(given | {"searches": {}} | fields),
    )


def _copying(share: float) -> str:
    return f"input.modifiers=(Copying(share={share}),)"


def _muon(factor: float, iterations: int = 3) -> dict[str, str]:
    """Muon with this matrix_factor."""
    return {"optimizer": f"Muon(matrix_factor={factor},iterations={iterations})"}


_RECIPES = (
    _recipe("Adafactor", optimizer=_ADAFACTOR),
    _recipe("Adafactor, copies 0.2", _copying(0.2), optimizer=_ADAFACTOR),
    _recipe("Muon, factor 0.25", **_muon(0.25)),
    _recipe("Muon, factor 0.5"),
    _recipe("Muon, factor 0.5, 5 iterations", **_muon(0.5, 5)),
    _recipe("Muon, factor 1", **_muon(1.0)),
    _recipe("Muon, copies 0.1", _copying(0.1)),
    _recipe("Muon, copies 0.2", _copying(0.2)),
    _recipe("Muon, copies 0.4", _copying(0.4)),
    _recipe("Muon, copies 0.2, sinusoids", _copying(0.2), "model.position=Sinusoidal()"),
    _recipe("Muon, copies 0.2, tiny.MoE", _copying(0.2), model="tiny.MoE"),
    _recipe("Muon, copies 0.2, finegrained.Tiny", _copying(0.2), model="finegrained.Tiny"),
)


def _knob(name: str, *overrides: str, **fields: Any) -> Row:
    """tiny.MoE on 38 pairs of real text, with the recipe of small.MoE and one thing changed."""
    given: dict[str, Any] = {"model": "tiny.MoE", "data": "tldr4k", "steps": 1000}
    given |= {"optimizer": _MUON}
    always = (*_REAL_TEXT, _copying(0.15), "train.eval_every=200")
    return Row(name=f"knob/{name}", overrides=(*always, *overrides), **(given | fields))


_FEW_EVALUATIONS = ("train.eval_every=1000",)


_SEARCHES = {
    "beam": (),
    "greedy": ("decoding.beam_size=1",),
    "beam8": ("decoding.beam_size=8",),
    "alpha0": ("decoding.length_penalty=0.0",),
    "alpha1": ("decoding.length_penalty=1.0",),
    "alpha1.5": ("decoding.length_penalty=1.5",),
}


_KNOBS = (
    _knob("base", searches=_SEARCHES),
    _knob("the same, seeds 2 and 3", seeds=(2, 3)),
    _knob("temperature 1", "input.temperature=1.0"),
    _knob("temperature 5", "input.temperature=5.0"),
    _knob("dropout 0", "model.dropout_rate=0.0"),
    _knob("dropout 0.2", "model.dropout_rate=0.2"),
    _knob("label smoothing 0", "label_smoothing=0.0"),
    _knob("label smoothing 0.2", "label_smoothing=0.2"),
    _knob("second expert always", "model.moe.gating=TopK(k=2)"),
    _knob("capacity factor 1", "model.moe.training.capacity_factor=1.0"),
    _knob("dropless", "model.moe.training=Ragged()"),
    _knob("balance loss 0", "model.moe.gating.balance.weight=0.0"),
    _knob("balance loss 0.1", "model.moe.gating.balance.weight=0.1"),
    _knob("output masking 0.2", "model.moe.expert.mask_rate=0.2"),
    _knob("8,000 pieces", *_vocabulary(8000), data="tldr8k"),
    _knob("16,000 pieces", *_vocabulary(16000), data="tldr"),
    _knob("EMA 0.99", "optimizer.ema_decay=0.99"),
    _knob("rate 0.015", rate=0.015),
    _knob("rate 0.06", rate=0.06),
    _knob("16 rows, 2,000 steps", "input.batch_size=16", steps=2000),
    _knob("4,000 steps, base", *_FEW_EVALUATIONS, steps=4000),
    _knob("4,000 steps, dense", *_FEW_EVALUATIONS, steps=4000, model="tiny.Dense"),
    _knob("4,000 steps, fine-grained", *_FEW_EVALUATIONS, steps=4000, model="finegrained.Tiny"),
    _knob(
        "16,000 pieces, dropout 0, temperature 1",
        *(*_vocabulary(16000), "model.dropout_rate=0.0", "input.temperature=1.0"),
        data="tldr",
    ),
)


# The values that small.MoE had before: "Earlier recipes" in results/notes.md.
_EARLIER = (
    *_vocabulary(8000),
    "model.dropout_rate=0.2",
    "input.temperature=2.0",
    "input.modifiers=()",
)
_MANY = Row(name="many/4000 steps", data="both8k", optimizer=_ADAFACTOR, overrides=_EARLIER)


_LARGEST = ("ko", "es", "zh", "nl", "it", "id", "pt_BR", "ru", "fr", "de")
# name -> (the languages of its pairs, () for all; a name of learning_data.CORPORA)
_TEXTS = {
    "1 pair, ko": (("ko",), "tldr4k"),
    "1 pair, es": (("es",), "tldr4k"),
    "3 pairs, es, nl and it": (("es", "nl", "it"), "tldr4k"),
    "10 pairs": (_LARGEST, "tldr4k"),
    "38 pairs": ((), "tldr4k"),
    "109 pairs": ((), "wikimessages4k"),
    "117 pairs": ((), "both4k"),
}


def _until_it_reads(
    text: str,
    study: str = "budget",
    model: str = "tiny.MoE",
    optimizer: str = _ADAFACTOR,
    modifiers: str = "()",
    seeds: Sequence[int] = (1,),
) -> Row:
    """A model on one of _TEXTS, until its translations depend on their sources."""
    languages, data = _TEXTS[text]
    overrides = (
        f"input.modifiers={modifiers}",
        *_vocabulary(4000),
        "input.temperature=2.0",
        "train.eval_every=50",
        f"input.pairs={tuple(f'{language}-en' for language in languages)}",
    )
    return Row(
        name=f"{study}/{model}, {text}",
        model=model,
        overrides=overrides,
        steps=3000,
        optimizer=optimizer,
        data=data,
        seeds=seeds,
        searches={},
        until_source_use=0.5,
    )


_BUDGETS = (
    *(_until_it_reads(text, seeds=(1, 2)) for text in _TEXTS),
    *(
        _until_it_reads(text, model="small.MoE")
        for text in ("1 pair, ko", "10 pairs", "38 pairs", "117 pairs")
    ),
    *(
        _until_it_reads(text, "budget_muon", optimizer=_MUON, modifiers="(Copying(share=0.15),)")
        for text in _TEXTS
    ),
)
ROWS = (*_SCALE, *_RATES, *_RECIPES, *_KNOBS, *_BUDGETS, _MANY, *_PEERS)
