"""Peer: the same model in plain PyTorch.  python benchmarks/_peers/plain_torch.py DROPOUT [DTYPE]

Experts take slots of a capacity by index and are one batched product, attention is
scaled_dot_product_attention, the loss is PyTorch's fused label-smoothed cross-entropy, the
optimizer torch.optim.Adafactor. Eager mode.
"""

import sys
from pathlib import Path

import torch
from _serve import SHAPE, batch, serve
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _torch_model import AUX_LOSS_WEIGHT, Model


class Trained(Model):
    """batch -> the objective alone; computing the likelihood too, as Model does, takes longer."""

    def forward(self, source, target_inputs, target_ids):
        """int64 [B, T] each, without padding."""
        ones = torch.ones_like(source)
        memory, first = self.encoder(source, ones)
        x, second = self.decoder(target_inputs, ones, memory, ones)
        logits = functional.linear(x * self.scale, self.decoder.table.weight).flatten(0, 1)
        loss = functional.cross_entropy(
            logits, target_ids.flatten(), label_smoothing=self.smoothing
        )
        return loss + AUX_LOSS_WEIGHT * (first + second)


def main() -> None:
    """Answers requests on standard input; see _serve."""
    dropout = float(sys.argv[1])
    dtype = getattr(torch, sys.argv[2] if len(sys.argv) > 2 else "float32")
    torch.manual_seed(0)
    names = ("model_dim", "hidden_dim", "num_heads", "head_dim")
    shape = {name: SHAPE[name] for name in names} | {
        "num_encoder_layers": SHAPE["layers"],
        "num_decoder_layers": SHAPE["layers"],
        "source_vocab_size": SHAPE["vocab_size"],
        "target_vocab_size": SHAPE["vocab_size"],
        "dropout_rate": dropout,
        "label_smoothing": 0.1,
        "moe": {
            "num_experts": SHAPE["num_experts"],
            "decoder_num_experts": None,
            "hidden_dim": None,
            "capacity_factor": 2.0,
            "every_n": SHAPE["every_n"],
        },
    }
    model = Trained(shape).train()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.01, weight_decay=0.0)
    feed = [torch.from_numpy(value) for value in batch().values()]

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = model(*feed)
        loss.backward()
        optimizer.step()
        return loss.item()

    serve(step, f"PyTorch {torch.__version__}", weights=sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
