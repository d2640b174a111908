"""Makes the graph of a SavedModel smaller."""

from pathlib import Path

from lingvo_moe.nn.tensorflow_private import FunctionDef, NodeDef, SavedModelProto

_GRAPH, _FINGERPRINT = "saved_model.pb", "fingerprint.pb"
_SHAPES = "_output_shapes"  # of each node, for display only
_ARGUMENT = "_user_specified_name"  # of each argument, for saving the functions of Python again


def compact(directory: Path) -> None:
    """Removes what a program that runs the graph does not need; results stay the same.

    In each function equal constants become one, and nodes lose the shapes of their outputs, which
    TensorFlow infers again. Functions that only other functions call lose Python's names of their
    arguments. The fingerprint is removed too, because it no longer matches the file.

    Args:
        directory: of a SavedModel.
    """
    model = SavedModelProto.FromString((directory / _GRAPH).read_bytes())
    for graph in model.meta_graphs:
        of_python = set(graph.object_graph_def.concrete_functions)
        for function in graph.graph_def.library.function:
            _compact_function(function)
            if function.signature.name not in of_python:
                for argument in function.arg_attr.values():
                    argument.attr.pop(_ARGUMENT, None)
    (directory / _GRAPH).write_bytes(model.SerializeToString(deterministic=True))
    (directory / _FINGERPRINT).unlink(missing_ok=True)


def _compact_function(function: FunctionDef) -> None:
    first: dict[tuple[str, bytes], str] = {}
    same: dict[str, str] = {}  # name of a node -> name of an equal one
    kept = []
    for node in function.node_def:
        node.attr.pop(_SHAPES, None)
        if node.op == "Const" and not node.input:
            value = node.attr["value"].SerializeToString(deterministic=True)
            same[node.name] = first.setdefault((node.device, value), node.name)
        if same.get(node.name, node.name) == node.name:
            kept.append(NodeDef.FromString(node.SerializeToString()))
    for node in kept:
        node.input[:] = [_renamed(name, same) for name in node.input]
    del function.node_def[:]
    function.node_def.extend(kept)
    for outputs in (function.ret, function.control_ret):
        for name in outputs:
            outputs[name] = _renamed(outputs[name], same)


def _renamed(reference: str, same: dict[str, str]) -> str:
    """A reference to an output, with the name of the equal node that is kept.

    Args:
        reference: such as "^name" or "name:output:0".
        same: name of a node -> name of the equal node that is kept.
    """
    control = "^" * reference.startswith("^")
    name, colon, output = reference.removeprefix("^").partition(":")
    return control + same.get(name, name) + colon + output
