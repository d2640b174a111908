"""Peer: Hugging Face generates.  python benchmarks/_peers/decode_hugging_face.py [DIRECTORY]

M2M-100; or, with a directory, NLLB-MoE with eight experts in every second layer, whose checkpoint
is written there for decode_imported.py. Both have random weights. They differ from this package's
models: LayerNorm and biases, sinusoidal positions.
"""

import sys
from pathlib import Path

import torch
import transformers
from _serve import SHAPE, STEPS, serve, sources

sys.path.append(str(Path(__file__).parents[2] / "testdata" / "huggingface"))
from fixtures import NLLB_CODES, nllb_tokenizer

PIECES = 100  # sources are made of the first pieces after the special ones


def main() -> None:
    """Answers requests on standard input; see _serve."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    model, options = (_nllb_moe(directory) if directory else _m2m100()), {}
    model.eval()

    @torch.inference_mode()
    def step(batch=1, beam=1):
        ids = torch.from_numpy(sources(batch)).long()
        if directory:
            ids = 4 + ids % PIECES
            ids[:, -1] = 2  # EOS
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beam,
            do_sample=False,
            min_new_tokens=STEPS,
            max_new_tokens=STEPS,
            **options,
        )
        return float(output.sum())

    serve(step, f"transformers {transformers.__version__}, PyTorch {torch.__version__}")


def _config(**more):
    """The fields of a config.json."""
    torch.manual_seed(0)
    config = {"d_model": SHAPE["model_dim"], **more}
    for side in ("encoder", "decoder"):
        config |= {
            f"{side}_layers": SHAPE["layers"],
            f"{side}_ffn_dim": SHAPE["hidden_dim"],
            f"{side}_attention_heads": SHAPE["num_heads"],
        }
    return config


def _m2m100():
    config = _config(vocab_size=SHAPE["vocab_size"])
    return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**config))


def _nllb_moe(directory):
    directory.mkdir()
    tokenizer = nllb_tokenizer(directory)
    config = _config(
        vocab_size=len(tokenizer.sp_model) + len(NLLB_CODES) + 4,
        num_experts=SHAPE["num_experts"],
        **{f"{side}_sparse_step": SHAPE["every_n"] for side in ("encoder", "decoder")},
    )
    model = transformers.NllbMoeForConditionalGeneration(transformers.NllbMoeConfig(**config))
    model.model.save_pretrained(directory)
    return model


if __name__ == "__main__":
    main()
