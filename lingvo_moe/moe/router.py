"""Routers score tokens against experts.  G groups, S tokens, E experts, M model, J tasks."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import tensorflow as tf

from lingvo_moe.config.fields import NonNegativeFloat, Params, PositiveInt, Rate
from lingvo_moe.nn.layer import Context, Normal, Uniform, WeightSpec
from lingvo_moe.nn.nested_map import NestedMap
from lingvo_moe.nn.tokens import Tokens
from lingvo_moe.sbp import copies


class RouterOutput(NamedTuple):
    """logits float32 [G, S, E]; loss float32 [], weighted; stats, float32, means over real tokens.

    `z_loss` [] is the unweighted loss, `importance` [E] the mean of the softmax (it sums to 1) and
    `entropy` [] the mean entropy of a token's softmax, in nats: ln E if undecided, 0 if certain.
    """

    logits: tf.Tensor
    loss: tf.Tensor
    stats: NestedMap


@dataclasses.dataclass(frozen=True, kw_only=True)
class Router(Params, abc.ABC):
    """Scores every token against every expert, always in float32.

    Attributes:
        z_loss_weight: weight of the router z-loss, the mean of logsumexp(logits)² over real tokens,
            which keeps logits small (Zoph et al. 2022, arXiv 2202.08906, equation 5, with 0.001).
    """

    z_loss_weight: NonNegativeFloat = 0.0

    @abc.abstractmethod
    def weights(self, model_dim: int, num_experts: int) -> NestedMap:
        """Theta, such as `gate`, with the letter "e" for experts.

        Unlike "E", this letter is not a batch dimension for optimizers, and in use it is not split
        over devices, because every token is scored against all experts. MoE does not cast the
        weights (see WeightSpec): bfloat16 would change the order of similar scores.
        """

    @abc.abstractmethod
    def logits(
        self, theta: NestedMap, inputs: tf.Tensor, tokens: Tokens, context: Context
    ) -> tf.Tensor:
        """float32 [G, S, E], the scores; arguments as in `fprop`."""

    def fprop(
        self, theta: NestedMap, inputs: tf.Tensor, tokens: Tokens, context: Context
    ) -> RouterOutput:
        """Scores tokens.

        Args:
            theta: as `weights`.
            inputs: [G, S, M].
            tokens: [G, S].
            context: mode and randomness.
        """
        logits = self.logits(theta, inputs, tokens, context)
        log_total = tf.reduce_logsumexp(logits, axis=-1)
        gates = tf.nn.softmax(logits)
        # -Σ p·ln p with ln p = logit - logsumexp.
        entropy = log_total - tf.reduce_sum(gates * logits, axis=-1)
        stats = NestedMap(
            z_loss=token_mean(tf.square(log_total), tokens.mask),
            importance=token_mean(gates, tokens.mask),
            entropy=token_mean(entropy, tokens.mask),
        )
        return RouterOutput(logits, self.z_loss_weight * stats.z_loss, stats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByToken(Router):
    """inputs·gate: scores each token by its vector in this layer.

    Attributes:
        jitter: ε; in training each element of the router's inputs, and only of the router's, is
            multiplied by U(1-ε, 1+ε) (Fedus et al. 2021, arXiv 2101.03961, appendix C; their code
            has 0.01).
    """

    jitter: Rate = 0.0

    def weights(self, model_dim, num_experts):
        limit = (3.0 / model_dim) ** 0.5
        return NestedMap(gate=WeightSpec((model_dim, num_experts), Uniform(limit), "Me"))

    def logits(self, theta, inputs, tokens, context):
        del tokens
        inputs = tf.cast(inputs, tf.float32)
        if context.training and self.jitter:
            inputs *= context.uniform(tf.shape(inputs), 1.0 - self.jitter, 1.0 + self.jitter)
        return copies.einsum("GSM,ME->GSE", inputs, tf.cast(theta.gate, tf.float32))


_Task = Literal["pair", "source", "target"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByTask(Router):
    """A learned row of scores for each task: all tokens of a sentence go to the same experts.

    Kudugunta et al. 2021 (arXiv 2110.03742), section 3: task-level routing. It works with all
    gatings. The experts of a sentence depend only on its task, so a server for a few languages
    needs only their experts.

    Attributes:
        task: the kind of task: the "source" language, the "target" language, or the "pair".
        num_tasks: J, rows of the table; at least the number of the dataset's tasks.
    """

    task: _Task = "source"
    num_tasks: PositiveInt = 128

    def task_names(self, pairs: Sequence[str]) -> list[str]:
        """The name of the task of each pair such as "de-en"."""
        place = get_args(_Task).index(self.task)
        return [(pair, *pair.split("-"))[place] for pair in pairs]

    def task_ids(self, pairs: Sequence[str]) -> list[int]:
        """The number of the task of each pair: tasks count from 0 in the order of their names.

        Raises:
            ValueError: more tasks than num_tasks.
        """
        names = self.task_names(pairs)
        tasks = sorted(set(names))
        if len(tasks) > self.num_tasks:
            raise ValueError(
                f"There are {len(tasks)} tasks (by {self.task}) and router.num_tasks is "
                f"{self.num_tasks}; pass --set=model.moe.router.num_tasks={len(tasks)}."
            )
        return [tasks.index(name) for name in names]

    def weights(self, model_dim, num_experts):
        del model_dim
        # A large standard deviation, so that tasks start with different experts.
        return NestedMap(task_gate=WeightSpec((self.num_tasks, num_experts), Normal(1.0), "Je"))

    def logits(self, theta, inputs, tokens, context):
        """As in Router.

        Raises:
            ValueError: tokens.tasks is None.
        """
        del inputs, context
        if tokens.tasks is None:
            raise ValueError(
                f"The router {type(self).__name__} needs the task of each sentence, but got none: "
                f"give the {self.task}, or choose the router ByToken()."
            )
        return copies.lookup(tf.cast(theta.task_gate, tf.float32), tokens.tasks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByTaskAndToken(ByTask):
    """The sum of the scores of a sentence's task and of a token's vector.

    A token of a language prefers that language's experts, and can still choose others.
    """

    def weights(self, model_dim, num_experts):
        by_token = ByToken().weights(model_dim, num_experts)
        return NestedMap(by_token | super().weights(model_dim, num_experts))

    def logits(self, theta, inputs, tokens, context):
        by_token = ByToken().logits(theta, inputs, tokens, context)
        return by_token + super().logits(theta, inputs, tokens, context)


def token_mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """The mean over real tokens; 0 if there are none.

    Args:
        values: float32 [G, S] or [G, S, …].
        mask: bool [G, S].
    """
    real = tf.cast(mask, tf.float32)
    total = tf.einsum("GS,GS...->...", real, values)
    return tf.math.divide_no_nan(total, tf.reduce_sum(real))
