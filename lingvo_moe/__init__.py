"""lingvo_moe: massively multilingual translation with Mixture-of-Experts Transformers.

The Python API is documented in docs/reference/python_api.md:

    import lingvo_moe as lm
    lm.prepare(corpus="corpus", output="data", joint_vocab=True)
    lm.train("small.MoE", data="data", logdir="models/moe")
    model = lm.load("models/moe")
    model.translate(["una frase"], to="en")

Importing the package costs nothing: TensorFlow is loaded when a name is first used.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Exported",
    "Model",
    "Score",
    "Translation",
    "evaluate",
    "evolve",
    "export",
    "load",
    "params",
    "prepare",
    "register",
    "train",
    "train_baselines",
]

if TYPE_CHECKING:
    from lingvo_moe.api import (
        Exported,
        Model,
        Score,
        Translation,
        evaluate,
        evolve,
        export,
        load,
        params,
        prepare,
        register,
        train,
        train_baselines,
    )


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'lingvo_moe' has no attribute {name!r}")
    from lingvo_moe import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
