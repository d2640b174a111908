import math

import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.moe.activation import GEGLU, GELU, ReLU, SwiGLU

X = np.array([-2.0, -0.5, 0.0, 1.0, 3.0], np.float32)


def gelu(x):
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        (ReLU(), lambda x: max(x, 0.0)),
        (GELU(), gelu),
        (GEGLU(), gelu),
        (SwiGLU(), lambda x: x / (1 + math.exp(-x))),
    ],
    ids=["relu", "gelu", "geglu", "swiglu"],
)
def test_follows_its_formula(activation, formula):
    np.testing.assert_allclose(activation(tf.constant(X)), [formula(x) for x in X], atol=1e-6)


def test_the_glu_family_is_gated():
    assert [a.gated for a in (ReLU(), GELU(), GEGLU(), SwiGLU())] == [False, False, True, True]
