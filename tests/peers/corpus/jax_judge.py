"""The results of the cells of Flax, Haiku and Equinox for parameters that stepnet wrote."""

from pathlib import Path

import equinox
import flax
import flax.linen as linen
import haiku
import jax
import numpy as np
from flax import nnx, serialization, traverse_util
from judge import main
from safetensors.numpy import load_file

KEY = jax.random.PRNGKey(0)
FUNCTIONS = {"tanh": jax.numpy.tanh} | {
    name: getattr(jax.nn, name) for name in ("sigmoid", "relu", "hard_sigmoid")
}
LINEN = {"flax.rnn": linen.SimpleCell, "flax.gru": linen.GRUCell, "flax.lstm": linen.LSTMCell}
NNX = {
    "nnx.rnn": nnx.SimpleCell,
    "nnx.gru": nnx.GRUCell,
    "nnx.lstm": nnx.LSTMCell,
    "nnx.optimized_lstm": nnx.OptimizedLSTMCell,
}
HAIKU = {"haiku.rnn": haiku.VanillaRNN, "haiku.gru": haiku.GRU, "haiku.lstm": haiku.LSTM}
EQUINOX = {"equinox.gru": equinox.nn.GRUCell, "equinox.lstm": equinox.nn.LSTMCell}


def arrays_of(path):
    """All arrays of a file, by paths."""
    if path.endswith(".safetensors"):
        return load_file(path)
    if path.endswith(".npz"):
        return dict(np.load(path))
    tree = serialization.msgpack_restore(Path(path).read_bytes())
    return traverse_util.flatten_dict(tree, sep="/")


def functions(part):
    """The settings that are functions, as JAX has them."""
    return {name: FUNCTIONS.get(value, value) for name, value in part.settings.items()}


def steps(cell, carry, x):
    outputs = []
    for step in range(x.shape[1]):
        carry, output = cell(carry, x[:, step])
        outputs.append(np.asarray(output))
    return np.stack(outputs, 1)


def of_linen(part, arrays, inputs):
    cell = LINEN[part.layout](part.sizes["hidden"], **functions(part))
    empty = np.zeros((1, inputs), "float32")
    fresh = cell.init(KEY, cell.initialize_carry(KEY, empty.shape), empty)
    tree = {"params": traverse_util.unflatten_dict(arrays, sep="/")}
    params = serialization.from_state_dict(fresh, tree)
    shapes = jax.tree_util.tree_map(np.shape, (fresh, params))
    assert shapes[0] == shapes[1], shapes
    return lambda x: steps(
        lambda *given: cell.apply(params, *given), cell.initialize_carry(KEY, x[:, 0].shape), x
    )


def of_nnx(part, arrays, inputs):
    cell = NNX[part.layout](inputs, part.sizes["hidden"], rngs=nnx.Rngs(0), **functions(part))
    held = nnx.to_flat_state(nnx.state(cell, nnx.Param))
    assert {"/".join(map(str, path)) for path, _ in held} == arrays.keys(), arrays.keys()
    for path, value in held:
        array = arrays["/".join(map(str, path))]
        assert value.get_value().shape == array.shape, path
        target = cell
        for name in path[:-1]:
            target = getattr(target, name)
        setattr(target, path[-1], nnx.Param(array))
    return lambda x: steps(cell, cell.initialize_carry(x[:, 0].shape, nnx.Rngs(0)), x)


def of_haiku(part, arrays, inputs):
    def run(x):
        core = HAIKU[part.layout](part.sizes["hidden"], **functions(part))
        return haiku.dynamic_unroll(core, x, core.initial_state(len(x)), time_major=False)[0]

    function = haiku.without_apply_rng(haiku.transform(run))
    fresh, params, left = function.init(KEY, np.zeros((1, 1, inputs), "float32")), {}, dict(arrays)
    for module, values in fresh.items():
        front = module.partition("/")[2]
        params[module] = {name: left.pop(f"{front}/{name}" if front else name) for name in values}
    assert not left, left.keys()
    return lambda x: function.apply(params, np.ascontiguousarray(x))


def of_equinox(part, arrays, inputs):
    cell = EQUINOX[part.layout](inputs, part.sizes["hidden"], use_bias="bias" in arrays, key=KEY)
    for name, array in arrays.items():
        assert getattr(cell, name).shape == array.shape, name
        cell = equinox.tree_at(lambda tree, name=name: getattr(tree, name), cell, array)
    zeros = np.zeros(part.sizes["hidden"], "float32")
    both = part.layout == "equinox.lstm"

    def one(row):
        state, outputs = (zeros, zeros) if both else zeros, []
        for x in row:
            state = cell(x, state)
            outputs.append(np.asarray(state[0] if both else state))
        return np.stack(outputs)

    return lambda x: np.stack([one(row) for row in x])


KINDS = {"flax": of_linen, "nnx": of_nnx, "haiku": of_haiku, "equinox": of_equinox}


def judged(job):
    arrays = arrays_of(job.path)

    def load(part):
        cell = KINDS[part.layout.partition(".")[0]]
        return part.over_cells(arrays, lambda held, inputs: cell(part, held, inputs))

    return job.outputs(load)


if __name__ == "__main__":
    versions = {"flax": flax.__version__, "dm-haiku": haiku.__version__, "equinox": equinox.__version__}
    main(judged, versions)
