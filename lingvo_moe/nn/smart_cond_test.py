import tensorflow as tf

from lingvo_moe.nn.smart_cond import size_of, smart_cond


def test_a_bool_chooses_while_the_graph_is_built_and_a_tensor_when_it_runs():
    built = []

    def branch(value):
        return lambda: built.append(value) or tf.constant(value)

    assert smart_cond(True, branch(1), branch(2)) == 1
    assert smart_cond(False, branch(1), branch(2)) == 2
    assert built == [1, 2]

    built.clear()
    choose = tf.function(lambda condition: smart_cond(condition, branch(1), branch(2)))
    assert [int(choose(tf.constant(condition))) for condition in (True, False)] == [1, 2]
    assert sorted(built) == [1, 2]  # both branches, once


def test_a_size_is_an_int_where_it_is_static():
    sizes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def run(tensor):
        sizes.append(size_of(tensor, 1))
        return size_of(tensor, 0)

    assert run(tf.zeros([5, 3])) == 5
    assert sizes == [3]
