"""Hugging Face's M2M-100 with AdamW as an engine of learning_run.py."""

from typing import Any

import numpy as np
import torch
import transformers

from lingvo_moe.data.packing import padded
from lingvo_moe.data.vocabulary import EOS, PAD
from lingvo_moe.nn.nested_map import NestedMap

_CLIP, _WEIGHT_DECAY, _BETAS = 1.0, 0.01, (0.9, 0.98)
_PARTS = 4  # of a batch, each with sentences of similar length, so that few positions are padding


class PeerEngine:
    """A model with the layers, widths, vocabulary and dropout of the run's params.

    Rows are not packed: each sentence has its own row. A step has the same sentences as a step of
    our model. The schedule is also the same: linear warm-up, then half a cosine.
    """

    def __init__(self, run: dict[str, Any]):
        """See learning.py for the fields of `run`."""
        self._run, self._taken = run, 0
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        name = torch.cuda.get_device_name() if self._device == "cuda" else "cpu"
        self.about = {
            "device": name,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        torch.set_float32_matmul_precision("high")

    def initialize(self, seed):
        """See Engine."""
        torch.manual_seed(seed)
        sizes = self._run["sizes"]
        config = transformers.M2M100Config(
            vocab_size=sizes["vocab_size"],
            d_model=sizes["model_dim"],
            encoder_layers=sizes["num_encoder_layers"],
            decoder_layers=sizes["num_decoder_layers"],
            encoder_attention_heads=sizes["num_heads"],
            decoder_attention_heads=sizes["num_heads"],
            encoder_ffn_dim=sizes["hidden_dim"],
            decoder_ffn_dim=sizes["hidden_dim"],
            dropout=sizes["dropout_rate"],
            attention_dropout=sizes["dropout_rate"],
            activation_dropout=0.0,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            max_position_embeddings=256,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=EOS,
            decoder_start_token_id=EOS,
        )
        self._model = transformers.M2M100ForConditionalGeneration(config).to(self._device)
        weights = sum(p.numel() for p in self._model.parameters())
        self.about = self.about | {"weights": str(weights)}
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), betas=_BETAS, weight_decay=_WEIGHT_DECAY, fused=True
        )
        self._taken = 0

    def train(self, batches):
        """See Engine."""
        tokens = 0
        self._model.train()
        for batch in batches:
            for group in self._optimizer.param_groups:
                group["lr"] = float(self._run["peer"]["learning_rate"]) * self._share()
            size = int((batch["target_ids"] != PAD).sum())
            for given, targets, _ in self._parts(batch):
                losses = self._losses(given, targets, reduction="sum", label_smoothing=0.1)
                (losses / size).backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), _CLIP)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._taken += 1
            tokens += size
        return tokens

    def evaluate(self, batch):
        """See Engine."""
        self._model.eval()
        nll = tokens = np.zeros(self._run["num_pairs"])
        for given, targets, pairs in self._parts(batch):
            with torch.no_grad():
                losses = self._losses(given, targets, reduction="none").reshape(targets.shape)
            of_sentences = losses.sum(1).double().cpu().numpy()
            nll = nll + np.bincount(pairs, of_sentences, len(nll))
            lengths = (targets != PAD).sum(1).cpu().numpy()
            tokens = tokens + np.bincount(pairs, lengths, len(nll))
        return NestedMap(nll=nll.sum(), tokens=tokens.sum(), pair_nll=nll, pair_tokens=tokens)

    def state(self):
        """See Engine."""
        return {
            f"theta/{name}": value.detach().cpu().numpy().copy()
            for name, value in self._model.state_dict().items()
        }

    def restore(self, state):
        """See Engine; only for evaluation: the state does not contain the optimizer's."""
        self._model.load_state_dict(
            {n.removeprefix("theta/"): torch.tensor(x) for n, x in state.items()}
        )

    def search(self, name, ids, lengths):
        """See Engine."""
        raise ValueError("Runs of a peer have no searches; leave `searches` empty.")

    def _share(self):
        """The learning rate over its maximum."""
        steps, warmup = self._run["steps"], self._run["steps"] // 10
        if self._taken < warmup:
            return (self._taken + 1) / warmup
        return 0.5 * (1 + np.cos(np.pi * (self._taken - warmup) / (steps - warmup)))

    def _losses(self, given, targets, **options):
        logits = self._model(**given).logits.float().flatten(0, 1)
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(logits, targets.flatten(), ignore_index=PAD, **options)

    def _parts(self, batch):
        """The sentences of packed rows in `_PARTS` parts: inputs, targets [N, T] and pairs [N]."""
        sentences = sorted(_sentences(batch), key=lambda one: len(one[0]))
        for part in np.array_split(np.arange(len(sentences)), _PARTS):
            if len(part):
                yield self._tensors(*zip(*(sentences[i] for i in part), strict=True))

    def _tensors(self, sources, targets, pairs):
        """The model's inputs, targets and pairs of some sentences."""
        before: Any = [np.concatenate([[EOS], target[:-1]]) for target in targets]
        source, inputs, target = (
            torch.tensor(padded(of)[0], dtype=torch.int64, device=self._device)
            for of in (sources, before, targets)
        )
        mask = (source != PAD).long()
        given = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": inputs}
        return given, target, np.array(pairs)


def _sentences(batch):
    """(source, target, pair) of each sentence of packed rows."""
    for row in range(len(batch["source_ids"])):
        of_source, of_target = (batch[f"{side}_segment_ids"][row] for side in ("source", "target"))
        for segment in range(1, int(of_target.max()) + 1):
            source = batch["source_ids"][row][of_source == segment]
            target = batch["target_ids"][row][of_target == segment]
            yield source, target, int(batch["target_pair_ids"][row][of_target == segment][0])
