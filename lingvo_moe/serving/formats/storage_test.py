import numpy as np
import pytest
import tensorflow as tf

from lingvo_moe.nn.layer import Constant, WeightSpec
from lingvo_moe.serving.formats.storage import STORAGES

MATRIX = np.array([[1.0, -0.5], [0.25, 127.0]], np.float32)


def spec(dims):
    return WeightSpec((2,) * len(dims), Constant(0.0), dims)


def test_int8_has_a_scale_for_each_output_channel():
    # Columns: the largest are 1 and 127, so the scales are 1/127 and 1; 0.25 · 127 = 31.75 -> 32.
    packed = STORAGES["int8"].pack(MATRIX, spec("MH"))
    assert packed.values.tolist() == [[127, 0], [32, 127]]
    np.testing.assert_allclose(packed.scale, [[1 / 127, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(packed.unpack(), [[1.0, 0.0], [32 / 127, 127.0]], rtol=1e-6)


def test_int8_has_a_scale_for_each_row_of_an_embedding():
    packed = STORAGES["int8"].pack(MATRIX, spec("VM"))
    np.testing.assert_allclose(packed.scale, [[1 / 127], [1.0]], rtol=1e-6)
    assert packed.values.tolist() == [[127, -64], [0, 127]]  # -63.5 goes to the even number


def test_experts_and_equal_layers_have_scales_of_their_own():
    weight = np.ones([3, 2, 4, 5], np.float32)
    packed = STORAGES["int8"].pack(weight, WeightSpec(weight.shape, Constant(0.0), "YEMH"))
    assert packed.scale.shape == (3, 2, 1, 5)


def test_bfloat16_keeps_8_bits():
    packed = STORAGES["bfloat16"].pack(np.array([[1 + 2**-7, 1 + 2**-9]], np.float32), spec("MH"))
    assert packed.values.dtype == tf.bfloat16.as_numpy_dtype
    assert packed.unpack().numpy().tolist() == [[1 + 2**-7, 1.0]]
    assert packed.unpack().dtype == tf.float32


@pytest.mark.parametrize("name", STORAGES)
@pytest.mark.parametrize("dims", ["Me", "Je", "M", "KN"])
def test_gates_norms_and_biases_stay_float32(name, dims):
    packed = STORAGES[name].pack(MATRIX, spec(dims))
    assert packed.values is MATRIX
    assert packed.scale is None
