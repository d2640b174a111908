"""Peer: Hugging Face's NLLB-MoE.  python benchmarks/_peers/hugging_face.py DROPOUT [DTYPE]

NllbMoeForConditionalGeneration made from a configuration, so nothing is downloaded. It is top-2,
with a capacity that drops no token: with a smaller one it would compute fewer tokens. It differs
from the other peers in its LayerNorm and biases, sinusoidal positions, one embedding for both
sides, and no label smoothing. It has no balance losses, because transformers fails to compute them
with use_cache=False.
"""

import sys

import torch
import transformers
from _serve import SHAPE, batch, serve
from transformers import NllbMoeConfig, NllbMoeForConditionalGeneration


def main() -> None:
    """Answers requests on standard input; see _serve."""
    dropout = float(sys.argv[1])
    dtype = getattr(torch, sys.argv[2] if len(sys.argv) > 2 else "float32")
    torch.manual_seed(0)
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {
            f"{side}_layers": SHAPE["layers"],
            f"{side}_ffn_dim": SHAPE["hidden_dim"],
            f"{side}_attention_heads": SHAPE["num_heads"],
            f"{side}_layerdrop": 0.0,
            f"{side}_sparse_step": SHAPE["every_n"],
        }
    tokens = SHAPE["batch_size"] * SHAPE["length"]
    config = NllbMoeConfig(
        vocab_size=SHAPE["vocab_size"],
        d_model=SHAPE["model_dim"],
        num_experts=SHAPE["num_experts"],
        expert_capacity=tokens,
        dropout=dropout,
        attention_dropout=dropout,
        moe_token_dropout=0.0,
        use_cache=False,
        **sides,
    )
    model = NllbMoeForConditionalGeneration(config).train()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.01, weight_decay=0.0)
    ids = {name: torch.from_numpy(value) for name, value in batch().items()}

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            output = model(
                input_ids=ids["source_ids"],
                decoder_input_ids=ids["target_inputs"],
                labels=ids["target_ids"],
            )
        output.loss.backward()
        optimizer.step()
        return output.loss.item()

    about = f"transformers {transformers.__version__}, PyTorch {torch.__version__}"
    serve(step, about, weights=sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
