"""A smaller graph with the same results."""

import numpy as np
import tensorflow as tf

from lingvo_moe.nn.tensorflow_private import SavedModelProto
from lingvo_moe.serving.compact import compact


def test_equal_constants_become_one(tmp_path):
    module = tf.Module()

    def run(x):
        with tf.control_dependencies([tf.constant(2.0)]):
            x = tf.identity(x)
        x = x * tf.constant(2.0) + tf.constant(2.0) - tf.constant(3.0)
        return {"x": x, "two": tf.constant(2.0), "int": tf.constant(2)}

    module.run = tf.function(
        run, autograph=False, input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    tf.saved_model.save(module, str(tmp_path))
    before = (tmp_path / "saved_model.pb").stat().st_size
    compact(tmp_path)
    assert (tmp_path / "saved_model.pb").stat().st_size < before
    assert not (tmp_path / "fingerprint.pb").exists()
    (graph,) = SavedModelProto.FromString((tmp_path / "saved_model.pb").read_bytes()).meta_graphs
    function = next(f for f in graph.graph_def.library.function if "run" in f.signature.name)
    nodes = [node for node in function.node_def if node.op == "Const"]
    assert len(nodes) == 3  # 2.0, 3.0 and 2
    assert not any("_output_shapes" in node.attr for node in function.node_def)
    results = tf.saved_model.load(str(tmp_path)).run(tf.constant([1.0, 4.0]))
    np.testing.assert_array_equal(results["x"], [1.0, 7.0])
    assert (results["two"], results["int"]) == (2.0, 2)
