import tensorflow as tf

from lingvo_moe.nn.gradients import custom_gradient, without_gradients


@custom_gradient
def doubled(x):
    return x * 2.0, lambda upstream: upstream * 7.0


def test_the_gradient_is_left_out_where_a_graph_does_not_need_it():
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = doubled(x)
    assert (y, tape.gradient(y, x)) == (6.0, 7.0)
    with tf.GradientTape() as tape, without_gradients():
        tape.watch(x)
        y = doubled(x)
    assert (y, tape.gradient(y, x)) == (6.0, 2.0)
