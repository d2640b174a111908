"""A model of another size, as a difference from a registered one, trained from Python.

python examples/own_size.py DATA LOGDIR     # DATA is from lingvo-moe-prepare --joint_vocab
"""

import sys

import lingvo_moe as lm


def my_params():
    """small.MoE with more hidden units, 16 experts and 10,000 steps."""
    params = lm.params("small.MoE")
    params = lm.evolve(params, "model.hidden_dim", 1024)
    params = lm.evolve(params, "model.moe.num_experts", 16)
    return lm.evolve(params, "train.max_steps", 10_000)


if __name__ == "__main__":
    data, logdir = sys.argv[1:]
    result = lm.train(my_params(), data=data, logdir=logdir)
    print(result.best)
