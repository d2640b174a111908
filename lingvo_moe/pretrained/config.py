"""config.json of Hugging Face's M2M-100 and NLLB models, as params."""

from collections.abc import Mapping
from typing import Any

from lingvo_moe.config.fields import check_fields, short_repr
from lingvo_moe.data.language_tags import OnBothSides
from lingvo_moe.data.pipeline import InputParams
from lingvo_moe.layers.norm import LayerNorm
from lingvo_moe.layers.position import Sinusoidal
from lingvo_moe.layers.transformer_layer import TransformerParams
from lingvo_moe.moe.experts import ExpertParams
from lingvo_moe.moe.gatings.top_k import TopK
from lingvo_moe.moe.layer import MoEParams
from lingvo_moe.tasks.params import TranslationParams
from lingvo_moe.training.adamw import AdamW
from lingvo_moe.training.schedules import InverseSquareRoot

FILE = "config.json"
_MOE_TYPES = ("nllb-moe", "nllb_moe")
_TYPES = ("m2m_100", *_MOE_TYPES)
_SIDES = ("encoder", "decoder")
_SIZES = (
    "vocab_size",
    "d_model",
    *(f"{side}_{size}" for side in _SIDES for size in ("layers", "attention_heads", "ffn_dim")),
)
_MOE_SIZES = ("num_experts", *(f"{side}_sparse_step" for side in _SIDES))
# What every released model has, and the classes' defaults: other values are other functions.
_FIXED = {
    "activation_function": "relu",
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "tie_word_embeddings": True,
}
_MOE_FIXED = {
    "router_bias": False,
    "router_dtype": "float32",
    "second_expert_policy": "all",
    "moe_eval_capacity_token_fraction": 1.0,
}
_WARMUP_STEPS = 10


def is_moe(config: Mapping[str, Any]) -> bool:
    """Whether the names of its tensors are those of NLLB-MoE."""
    return config["model_type"] in _MOE_TYPES


def to_params(config: Mapping[str, Any], source: str = FILE) -> TranslationParams:
    """The params of the model that a config.json, named `source` in errors, describes.

    Optimizer and schedule are those that Meta fine-tuned NLLB-200 with: Adam, learning rate 5e-5,
    10 steps of warm-up, then the inverse square root. The balance loss has the weight of fairseq's
    training, not of fine-tuning, which has none.

    Raises ValueError: it is of another kind of model, a field is missing, or one has a value that
    makes another function of the model.
    """
    check_fields(config, {"model_type": str}, source)
    if config["model_type"] not in _TYPES:
        raise ValueError(
            f"{source}: model_type is {short_repr(config['model_type'])}, not one of {_TYPES[:2]}."
        )
    moe = is_moe(config)
    check_fields(config, dict.fromkeys((*_SIZES, *(_MOE_SIZES if moe else ())), int), source)
    for name, value in (_FIXED | (_MOE_FIXED if moe else {})).items():
        if (found := config.get(name, value)) != value:
            raise ValueError(
                f"{source}: {name} is {short_repr(found)}; only {value!r} is supported."
            )
    heads = [config[f"{side}_attention_heads"] for side in _SIDES]
    model_dim = config["d_model"]
    try:
        return TranslationParams(
            model=TransformerParams(
                num_encoder_layers=config["encoder_layers"],
                num_decoder_layers=config["decoder_layers"],
                model_dim=model_dim,
                hidden_dim=config["encoder_ffn_dim"],
                num_heads=heads[0],
                head_dim=model_dim // heads[0],
                decoder_hidden_dim=_other(config["decoder_ffn_dim"], config["encoder_ffn_dim"]),
                decoder_num_heads=_other(heads[1], heads[0]),
                decoder_head_dim=_other(model_dim // heads[1], model_dim // heads[0]),
                moe=_moe(config) if moe else None,
                dropout_rate=config.get("dropout", 0.1),
                shared_embedding=True,
                norm=LayerNorm(epsilon=1e-5),
                position=Sinusoidal(first=2),
                use_bias=True,
                scale_embedding=config.get("scale_embedding", True),
                scale_attention=True,
            ),
            source_vocab_size=config["vocab_size"],
            target_vocab_size=config["vocab_size"],
            language_tags=OnBothSides(),
            input=InputParams(source_length=128, target_length=128),
            optimizer=AdamW(
                schedule=InverseSquareRoot(
                    learning_rate=5e-5 * _WARMUP_STEPS**0.5,
                    warmup_steps=_WARMUP_STEPS,
                    linear_warmup=True,
                ),
                beta2=0.98,
                epsilon=1e-6,
            ),
        )
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def _moe(config) -> MoEParams:
    steps = [config[name] for name in _MOE_SIZES[1:]]
    if steps[0] != steps[1]:
        raise ValueError(
            f"encoder_sparse_step={steps[0]} and decoder_sparse_step={steps[1]} must be equal."
        )
    return MoEParams(
        num_experts=config["num_experts"],
        every_n=steps[0],
        gating=TopK(k=2),
        expert=ExpertParams(mask_rate=config.get("moe_token_dropout", 0.2)),
    )


def _other(decoder: int, encoder: int) -> int | None:
    """A size of the decoder, None where it is the encoder's."""
    return None if decoder == encoder else decoder
