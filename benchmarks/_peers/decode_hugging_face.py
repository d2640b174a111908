"""Peer: Hugging Face generates.  python benchmarks/_peers/decode_hugging_face.py EXPERTS

M2M-100 if EXPERTS is 0, else NLLB-MoE with that number of experts in every second layer. Both are
made from a configuration, with random weights. They differ from this package's models as they must:
LayerNorm and biases, sinusoidal positions.
"""

import sys

import torch
import transformers
from _serve import SHAPE, STEPS, serve, sources


def main() -> None:
    """Serves."""
    model = _model(int(sys.argv[1])).eval()

    @torch.inference_mode()
    def step(batch=1, beam=1):
        ids = torch.from_numpy(sources(batch)).long()
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beam,
            do_sample=False,
            min_new_tokens=STEPS,
            max_new_tokens=STEPS,
        )
        return float(output.sum())

    serve(step, f"transformers {transformers.__version__}, PyTorch {torch.__version__}")


def _model(num_experts):
    torch.manual_seed(0)
    shape = {"vocab_size": SHAPE["vocab_size"], "d_model": SHAPE["model_dim"]}
    for side in ("encoder", "decoder"):
        shape |= {
            f"{side}_layers": SHAPE["layers"],
            f"{side}_ffn_dim": SHAPE["hidden_dim"],
            f"{side}_attention_heads": SHAPE["num_heads"],
        }
        if num_experts:
            shape[f"{side}_sparse_step"] = SHAPE["every_n"]
    if not num_experts:
        return transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**shape))
    config = transformers.NllbMoeConfig(num_experts=num_experts, **shape)
    return transformers.NllbMoeForConditionalGeneration(config)


if __name__ == "__main__":
    main()
