"""A plain PyTorch model of an export's shape: an encoder-decoder, dense or with top-2 experts.

Pre-norm layers, RMSNorm, a learned bias by relative distance in attention, no other biases, tied
softmax; rows hold packed sentences. `shape` is from an export's manifest.
"""

import torch
from torch import nn
from torch.nn import functional

AUX_LOSS_WEIGHT = 0.01
BUCKETS = 32


class Attention(nn.Module):
    """Multi-head attention by PyTorch's fused kernels."""

    def __init__(self, shape: dict):
        """The four matrices."""
        super().__init__()
        self.heads, self.rate = shape["num_heads"], shape["dropout_rate"]
        width, inner = shape["model_dim"], shape["num_heads"] * shape["head_dim"]
        self.query, self.key, self.value = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.output = nn.Linear(inner, width, bias=False)

    def forward(self, x, memory, bias):
        """[B, T, M] attends to memory [B, L, M]; bias broadcasts to [B, N, T, L]."""
        query, key, value = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, y in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        rate = self.rate if self.training else 0.0
        bias = bias.to(query.dtype)
        mixed = functional.scaled_dot_product_attention(query, key, value, bias, dropout_p=rate)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """The dense layer."""

    def __init__(self, shape: dict):
        """Two matrices."""
        super().__init__()
        self.wi = nn.Linear(shape["model_dim"], shape["hidden_dim"], bias=False)
        self.wo = nn.Linear(shape["hidden_dim"], shape["model_dim"], bias=False)

    def forward(self, x, real):
        """x [B, T, M] -> the same shape, and no loss."""
        del real
        return self.wo(functional.relu(self.wi(x))), 0.0


class Experts(nn.Module):
    """Top-2 of E experts with a capacity: each choice has a slot of its expert, or none.

    Without a capacity all experts have as many slots as the busiest one needs.
    """

    def __init__(self, shape: dict, experts: int):
        """The gate and the experts' matrices, stacked."""
        super().__init__()
        width, hidden = shape["model_dim"], shape["moe"]["hidden_dim"] or shape["hidden_dim"]
        self.experts, self.factor = experts, shape["moe"]["capacity_factor"]
        self.gate = nn.Linear(width, experts, bias=False)
        self.wi = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.wo = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x, real):
        """x [B, T, M], real [B, T] -> the same shape as x, and the balance loss."""
        flat = x.flatten(0, 1)
        tokens, width = flat.shape
        with torch.autocast(x.device.type, enabled=False):
            gates = functional.softmax(self.gate(flat.float()), dim=-1)
        weight, chosen = gates.topk(2)
        weight = weight / weight.sum(-1, keepdim=True)
        expert = chosen.t().flatten()  # all first choices, then all second ones
        hot = functional.one_hot(expert, self.experts) * real.flatten().repeat(2)[:, None]
        place = ((hot.cumsum(0) - 1) * hot).sum(-1)
        if self.factor is None:
            capacity = int(hot.sum(0).max())
        else:
            capacity = -(-int(self.factor * tokens) // self.experts)
        taken = (hot.sum(-1) > 0) & (place < capacity)
        slot = torch.where(taken, expert * capacity + place, self.experts * capacity)
        rows = flat.new_zeros(self.experts * capacity + 1, width)
        rows = rows.index_copy(0, slot, flat.repeat(2, 1))[:-1]
        hidden = functional.relu(torch.bmm(rows.view(self.experts, capacity, width), self.wi))
        outputs = torch.bmm(hidden, self.wo).flatten(0, 1)
        outputs = torch.cat([outputs, outputs.new_zeros(1, width)])[slot]
        mixed = (outputs.unflatten(0, (2, tokens)) * weight.t()[..., None]).sum(0)
        share = hot[:tokens].float().mean(0)
        return mixed.to(x.dtype).view_as(x), self.experts * (share * gates.mean(0)).sum()


class Layer(nn.Module):
    """Self-attention, attention to the source (decoder only), feed-forward or experts."""

    def __init__(self, shape: dict, experts: int | None, decoder: bool):
        """experts: how many; None for a dense layer."""
        super().__init__()
        self.rate = shape["dropout_rate"]
        self.attentions = nn.ModuleList(Attention(shape) for _ in range(1 + decoder))
        self.feed_forward = Experts(shape, experts) if experts else FeedForward(shape)
        self.norms = nn.ModuleList(nn.RMSNorm(shape["model_dim"]) for _ in range(2 + decoder))

    def forward(self, x, real, sources):
        """sources: (memory, bias) for each attention; memory None means the layer's own inputs."""
        for norm, attention, (memory, bias) in zip(
            self.norms[:-1], self.attentions, sources, strict=True
        ):
            y = norm(x)
            y = attention(y, y if memory is None else memory, bias)
            x = x + functional.dropout(y, self.rate, self.training)
        y, loss = self.feed_forward(self.norms[-1](x), real)
        return x + functional.dropout(y, self.rate, self.training), loss


class Stack(nn.Module):
    """The encoder or the decoder."""

    def __init__(self, shape: dict, side: str):
        """side: "source" or "target"."""
        super().__init__()
        self.decoder, self.rate, moe = side == "target", shape["dropout_rate"], shape["moe"]
        count = shape["num_decoder_layers" if self.decoder else "num_encoder_layers"]
        experts = moe and ((self.decoder and moe["decoder_num_experts"]) or moe["num_experts"])
        self.table = nn.Embedding(shape[f"{side}_vocab_size"], shape["model_dim"])
        self.relative = nn.Embedding(BUCKETS, shape["num_heads"])
        self.layers = nn.ModuleList(
            Layer(shape, experts if moe and (i + 1) % moe["every_n"] == 0 else None, self.decoder)
            for i in range(count)
        )
        self.norm = nn.RMSNorm(shape["model_dim"])

    def forward(self, ids, segments, memory=None, memory_segments=None):
        """Token ids and segments [B, T] -> [B, T, M], and the sum of the layers' losses."""
        position = torch.arange(ids.shape[1], device=ids.device)
        half = BUCKETS // 2
        distance = (position[None] - position[:, None]).clamp(-half, half - 1) + half
        allowed = segments[:, :, None] == segments[:, None]
        if self.decoder:
            allowed = allowed & (position[None] <= position[:, None])
        sources = [(None, self.relative(distance).permute(2, 0, 1) + _forbid(allowed))]
        if self.decoder:
            sources.append((memory, _forbid(segments[:, :, None] == memory_segments[:, None])))
        x, losses = functional.dropout(self.table(ids), self.rate, self.training), 0.0
        for layer in self.layers:
            x, loss = layer(x, segments != 0, sources)
            losses = losses + loss
        return functional.dropout(self.norm(x), self.rate, self.training), losses


def _forbid(allowed):
    return torch.where(allowed, 0.0, -1e9)[:, None]


class Model(nn.Module):
    """batch -> (nats a target token, the objective), both scalars."""

    def __init__(self, shape: dict):
        """shape: of the manifest."""
        super().__init__()
        self.scale, self.smoothing = shape["model_dim"] ** -0.5, shape["label_smoothing"]
        self.encoder, self.decoder = Stack(shape, "source"), Stack(shape, "target")

    def forward(self, batch):
        """batch: as batch.npz, int64 tensors."""
        source, target = batch["source_segment_ids"], batch["target_segment_ids"]
        memory, first = self.encoder(batch["source_ids"], source)
        x, second = self.decoder(batch["target_inputs"], target, memory, source)
        logits = functional.linear(x * self.scale, self.decoder.table.weight)
        flat = logits.float().flatten(0, 1)
        labels = torch.where(target.flatten() != 0, batch["target_ids"].flatten(), -100)
        smoothed = functional.cross_entropy(flat, labels, label_smoothing=self.smoothing)
        nll = functional.cross_entropy(flat.detach(), labels)
        return nll, smoothed + AUX_LOSS_WEIGHT * (first + second)
