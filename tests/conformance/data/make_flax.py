"""Makes flax.tar.xz and flax.json: checkpoints of Flax, as msgpack and of Orbax, and what Flax computes.

Needs what the group peer-jax of pyproject.toml has, in an environment of its own:
python tests/conformance/data/make_flax.py
"""

from pathlib import Path

import flax
import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import linen as nn
from flax.serialization import to_bytes
from recording import FEATURES, Arrays, Corpus, padded, weights


class Classifier(nn.Module):
    """Dense, GRU, LayerNorm, Dense."""

    @nn.compact
    def __call__(self, frames):
        y = nn.RNN(nn.GRUCell(5, name="gru"))(nn.relu(nn.Dense(4)(frames)))
        return nn.Dense(3)(nn.LayerNorm()(y))


class Stack(nn.Module):
    """Two LSTMs."""

    @nn.compact
    def __call__(self, frames):
        y = nn.RNN(nn.OptimizedLSTMCell(5, name="lower"))(frames)
        return nn.RNN(nn.OptimizedLSTMCell(4, name="upper"))(y)


def filled(name: str, model: nn.Module) -> dict:
    """The variables of a model, with random numbers in all arrays."""
    variables = model.init(jax.random.key(0), np.zeros((1, 1, FEATURES), "f4"))
    return jax.tree_util.tree_map_with_path(
        lambda path, array: weights(
            name, jax.tree_util.keystr(path, simple=True, separator="/"), array.shape
        ),
        variables,
    )


def msgpack(variables: dict, path: Path) -> None:
    """flax.serialization.to_bytes."""
    path.write_bytes(to_bytes(variables))


def orbax(variables: dict, path: Path) -> None:
    """A checkpoint of Orbax."""
    with ocp.StandardCheckpointer() as writer:
        writer.save(path, variables["params"])


FILES = {
    "classifier_msgpack": (Classifier, msgpack, ".msgpack"),
    "stack_msgpack": (Stack, msgpack, ".msgpack"),
    "classifier_orbax": (Classifier, orbax, ""),
}


def main() -> None:
    corpus = Corpus("Flax", f"flax {flax.__version__}, jax {jax.__version__}")
    for name, (make, save, suffix) in FILES.items():
        model = make()
        variables = filled(name, model)
        save(variables, corpus.folder / f"{name}{suffix}")

        def run(given: Arrays, model: nn.Module = model, variables: dict = variables) -> Arrays:
            return {"outputs": np.asarray(model.apply(variables, given["frames"]))}

        parts = {key: key.split("_")[0] for key in variables["params"]}
        corpus.add(
            run,
            {"frames": padded(name, "frames")},
            name=name,
            kind="msgpack" if suffix else "Orbax",
            file=f"{name}{suffix}",
            about=f"{(make.__doc__ or '').rstrip('.')}; {(save.__doc__ or '').rstrip('.')}",
            around={key: kind for key, kind in parts.items() if kind in ("Dense", "LayerNorm")},
            inputs={"frames": "frames"},
        )
    corpus.pack("flax")


if __name__ == "__main__":
    main()
