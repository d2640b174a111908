"""The flag --hardware: the cost model for moves of VExperts during training."""

import dataclasses

from lingvo_moe.flexmoe.cost import CostModel
from lingvo_moe.flexmoe.policy_maker import PolicyMaker
from lingvo_moe.flexmoe.rates import ExpertShape, from_hardware
from lingvo_moe.flexmoe.scheduler import Scheduler
from lingvo_moe.hardware.chips import NAMES, find_hardware
from lingvo_moe.hardware.links import group
from lingvo_moe.sbp.types import Mesh, parse_mesh
from lingvo_moe.tasks.translation import TranslationTask
from lingvo_moe.tools.common import FLAGS, Flag
from lingvo_moe.training.replicas import tensors_to_move

MEASURED = "measured"
# The flag of `make_scheduler`.
TABLE = (
    Flag("hardware", str, None,
         f"The kind of device: {NAMES}; or {MEASURED}, to measure them at the start. With this "
         f"flag VExperts move as loads change."),
)  # fmt: skip
_BYTES = 4  # of a number of weights and optimizer state


def make_scheduler(task: TranslationTask) -> Scheduler:
    """The scheduler that moves the task's VExperts, with the rates of FLAGS.hardware.

    Args:
        task: a model with VExperts.

    Raises:
        ValueError: the devices cannot be measured, or their number is not that of VExperts.
    """
    assert task.vexperts, "train_model checks this"
    model, devices = task.params.model, task.vexperts.devices
    assert model.moe
    activation = model.moe.expert.activation or model.activation
    mesh = parse_mesh(FLAGS.mesh) if FLAGS.mesh else Mesh((), ())
    parts = mesh.sizes.get("model", 1)  # of the hidden units of an expert
    expert = ExpertShape(
        model_dim=model.model_dim,
        # The third matrix of a gated expert is the work of half as many hidden units more.
        hidden_dim=model.expert_hidden_dim * (2 + activation.gated) // (2 * parts),
        dtype=task.params.activation_dtype,
    )
    if FLAGS.hardware == MEASURED:
        cost = _measured(expert, devices)
    else:
        stride = max((stride for _, stride in group(mesh, ("expert",)).axes), default=1)
        cost = from_hardware(find_hardware(FLAGS.hardware), devices, expert, stride=stride)
    gradient_bytes, state_bytes = _slot_bytes(task, task.vexperts.num_slots * parts)
    cost = dataclasses.replace(cost, gradient_bytes=gradient_bytes, state_bytes=state_bytes)
    return Scheduler(maker=PolicyMaker(cost=cost))


def _measured(expert: ExpertShape, devices: int) -> CostModel:
    if FLAGS.runtime != "spmd" or FLAGS.process_count is not None:
        raise ValueError(
            "--hardware=measured needs --runtime=spmd in one process, because several processes "
            f"would measure different rates; give {NAMES}."
        )
    from lingvo_moe.flexmoe.profile import Machine, measure

    machine = Machine(model_dim=expert.model_dim, hidden_dim=expert.hidden_dim, dtype=expert.dtype)
    if len(machine.devices) != devices:
        raise ValueError(
            f"VExperts has devices={devices}, and {len(machine.devices)} devices can be measured; "
            f"change devices, or give {NAMES}."
        )
    cost, _ = measure(machine).fit(
        token_bytes=machine.token_bytes, gradient_bytes=machine.gradient_bytes, state_bytes=0.0
    )
    return cost


def _slot_bytes(task: TranslationTask, parts: int) -> tuple[float, float]:
    """Bytes of a part of the first MoE layer, such as a slot: weights; with optimizer slots."""
    weights = task.weights()
    table = next(iter(task.placements))
    held = tensors_to_move(table, weights, task.params.optimizer.slots(weights))
    each, of_all = _BYTES / parts, sum(spec.size for spec in held.values())
    of_weights = sum(spec.size for name, spec in held.items() if name.startswith("theta/"))
    return of_weights * each, of_all * each
