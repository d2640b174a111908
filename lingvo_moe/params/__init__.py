"""The zoo: a module a family, a registered class a model."""

# Policies that no registered model uses are known to --set all the same. The underscores keep
# them apart from the modules of the zoo, one of which is called switch as well.
from lingvo_moe.gatings import balanced as _balanced
from lingvo_moe.gatings import expert_choice as _expert_choice
from lingvo_moe.gatings import hashed as _hashed
from lingvo_moe.gatings import switch as _switch
from lingvo_moe.gatings import top_k as _top_k
from lingvo_moe.layers import dropless as _dropless
from lingvo_moe.layers import fitted as _fitted
from lingvo_moe.layers import local_gather as _local_gather
from lingvo_moe.layers import vexperts as _vexperts
from lingvo_moe.train import adamw as _adamw
from lingvo_moe.train import lion as _lion

_POLICIES = (
    _adamw,
    _balanced,
    _dropless,
    _expert_choice,
    _fitted,
    _hashed,
    _lion,
    _local_gather,
    _switch,
    _top_k,
    _vexperts,
)
