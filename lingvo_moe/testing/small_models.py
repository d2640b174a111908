"""`--set` texts for models that are planned for eight devices."""

SMALL = (
    *("model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.model_dim=64"),
    *("model.hidden_dim=256", "model.head_dim=16", "source_vocab_size=96", "target_vocab_size=64"),
)
MOE = ("model.moe.training=Einsum(groups=8)", "model.moe.every_n=1")
