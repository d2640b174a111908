"""Writes small random checkpoints with transformers 4.49, and the results that it computes.

build/peers/.venv/bin/python testdata/huggingface/fixtures.py testdata/huggingface

`m2m100`, `nllb` and `nllb_moe`: config.json; weights in float32, bfloat16 and, in shards, float16;
the files of the tokenizer; reference.json and reference.npz with logits and results of searches.
Encoder and decoder differ in heads and hidden units, so that exchanging them is noticed.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    NllbMoeConfig,
    NllbMoeForConditionalGeneration,
    NllbTokenizer,
)
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_CODES

TEXT = """
The quick brown fox jumps over the lazy dog.
Pack my box with five dozen liquor jugs, she said.
How vexingly quick daft zebras jump over there!
Le cœur déçu mais l’âme plutôt naïve, Louÿs rêva de crapaüter en canoë.
Portez ce vieux whisky au juge blond qui fume.
Съешь же ещё этих мягких французских булок, да выпей чаю.
""".strip().splitlines()
TEXTS = [
    TEXT[0],
    TEXT[4],
    TEXT[5],
    "  two   spaces  ",
    "unknown: \u732b \U0001f642\U0001f642 end",
    "",
]
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 4},
    "early": {"num_beams": 4, "early_stopping": True},
    "short": {"num_beams": 3, "length_penalty": 0.6},
}
MAX_LENGTH = 20


def train_pieces(path: Path) -> None:
    """A BPE model of 120 pieces."""
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT),
            model_writer=file,
            model_type="bpe",
            vocab_size=120,
            normalization_rule_name="identity",
            minloglevel=2,
        )


def nllb_tokenizer(directory: Path) -> NllbTokenizer:
    """The tokenizer of the pieces there, with the ids of the released models."""
    pieces = directory / "sentencepiece.bpe.model"
    train_pieces(pieces)
    first = len(sentencepiece.SentencePieceProcessor(str(pieces))) + 1
    names = {
        **dict(enumerate(["<s>", "<pad>", "</s>", "<unk>"])),
        **dict(enumerate(NLLB_CODES, first)),
    }
    names[first + len(NLLB_CODES)] = "<mask>"
    # Without this file transformers 4.49 numbers the languages wrongly.
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {i: {"content": name, "special": True, **plain} for i, name in names.items()}
    languages = {name: i for i, name in enumerate(NLLB_CODES, first)}
    (directory / "added_tokens.json").write_text(json.dumps(languages) + "\n")
    settings = {"added_tokens_decoder": added, "additional_special_tokens": NLLB_CODES}
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(pieces, scratch)
        (Path(scratch) / "tokenizer_config.json").write_text(json.dumps(settings))
        return NllbTokenizer.from_pretrained(scratch, src_lang="eng_Latn", tgt_lang="fra_Latn")


def m2m100_tokenizer(directory: Path) -> M2M100Tokenizer:
    """A tokenizer whose vocab.json has the pieces in another order."""
    path = directory / "sentencepiece.bpe.model"
    train_pieces(path)
    model = sentencepiece.SentencePieceProcessor(str(path))
    pieces = [model.id_to_piece(i) for i in range(3, len(model))]
    np.random.default_rng(0).shuffle(pieces)
    ids = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
    (directory / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False))
    return M2M100Tokenizer(str(directory / "vocab.json"), str(path), src_lang="en", tgt_lang="fr")


def randomise(model: torch.nn.Module, seed: int, dtype: torch.dtype) -> None:
    """Random values, so that every part of a layer has an effect; exact in the type of the file."""
    torch.manual_seed(seed)
    for name, value in model.named_parameters():
        noise = torch.randn_like(value)
        scale = 0.3 if value.dim() == 1 or "shared" in name else 1.2 * value.shape[-1] ** -0.5
        center = 1.0 if "norm.weight" in name else 0.0
        value.data = (center + scale * noise).to(dtype).float()


def reference(model, tokenizer, directory: Path) -> None:
    """What the model computes for the first three texts, and the tokenizer for all."""
    sources = [tokenizer(text).input_ids for text in TEXTS]
    targets = [tokenizer(text_target=text).input_ids for text in TEXTS]
    decoded = [tokenizer.decode(ids[1:], skip_special_tokens=True) for ids in sources]
    found: dict[str, Any] = {"texts": TEXTS, "sources": sources, "targets": targets}
    found |= {"decoded": decoded, "searches": {}}
    logits = {}
    for i in range(2):
        ids, inputs = torch.tensor([sources[i]]), torch.tensor([[2, *targets[1 - i][:6]]])
        logits[str(i)] = model(input_ids=ids, decoder_input_ids=inputs).logits[0].numpy()
    for name, options in SEARCHES.items():
        outputs = [
            model.generate(
                input_ids=torch.tensor([source]),
                max_length=MAX_LENGTH,
                do_sample=False,
                forced_bos_token_id=targets[0][0],
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
            for source in sources[:3]
        ]
        scores = [
            float(o.sequences_scores[0]) if "sequences_scores" in o else None for o in outputs
        ]
        ids = [o.sequences[0].tolist() for o in outputs]
        found["searches"][name] = {"options": options, "ids": ids, "scores": scores}
    found["max_length"] = MAX_LENGTH
    (directory / "reference.json").write_text(json.dumps(found, ensure_ascii=False))
    np.savez_compressed(directory / "reference.npz", **logits)


def main() -> None:
    """Writes the three checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--d_model", type=int, default=16)
    args = parser.parse_args()
    sizes = {"d_model": args.d_model, "encoder_layers": 2, "decoder_layers": 2}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2}
    sizes |= {"encoder_ffn_dim": 12, "decoder_ffn_dim": 20}
    experts = {"num_experts": 3, "encoder_sparse_step": 2, "decoder_sparse_step": 2}
    for number, (name, make_tokenizer, dtype) in enumerate(
        [
            ("m2m100", m2m100_tokenizer, torch.float32),
            ("nllb", nllb_tokenizer, torch.bfloat16),
            ("nllb_moe", nllb_tokenizer, torch.float16),
        ]
    ):
        directory = args.output / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        tokenizer = make_tokenizer(directory)
        codes = FAIRSEQ_LANGUAGE_CODES["m2m100"] if name == "m2m100" else NLLB_CODES
        rows = 121 + len(codes) + (8 if name == "m2m100" else 3)
        if name == "nllb_moe":
            model = NllbMoeForConditionalGeneration(
                NllbMoeConfig(vocab_size=rows, **sizes, **experts)
            )
        else:
            model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=rows, **sizes))
        randomise(model, args.seed + number, dtype)
        model.eval()
        with torch.no_grad():
            reference(model, tokenizer, directory)
        # As nllb-moe-54b: of the model without a head, sharded.
        saved = model.model if name == "nllb_moe" else model
        shard = "10KB" if name == "nllb_moe" else "5GB"
        saved.to(dtype).save_pretrained(directory, max_shard_size=shard)
        (directory / "generation_config.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
