"""The files of Flax (linen and nnx), Orbax, Haiku and Equinox."""

from pathlib import Path
from tempfile import TemporaryDirectory

import equinox
import flax
import haiku
import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import linen, nnx, serialization, traverse_util
from safetensors.numpy import save_file
from specimens import HIDDEN, INPUTS, ROWS, STEPS, Specimens, pack, random

KEY = jax.random.PRNGKey(0)
USUAL = ("--semantics", "gate_activation=sigmoid", "--semantics", "candidate_activation=tanh")


class Speech(linen.Module):
    """LSTM, Dense, GRU."""

    @linen.compact
    def __call__(self, x):
        y = linen.RNN(linen.OptimizedLSTMCell(HIDDEN, name="encoder_lstm"))(x)
        y = linen.Dense(HIDDEN, name="dense")(y)
        return linen.RNN(linen.GRUCell(HIDDEN, name="decoder_gru"))(y)


class Twins(nnx.Module):
    """LSTM and GRU of nnx, with a Linear between them."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.encoder_lstm = nnx.LSTMCell(INPUTS, HIDDEN, rngs=rngs)
        self.linear = nnx.Linear(HIDDEN, HIDDEN, rngs=rngs)
        self.decoder_gru = nnx.GRUCell(HIDDEN, HIDDEN, rngs=rngs)


def randomised(tree):
    return jax.tree_util.tree_map(lambda leaf: random(*leaf.shape), tree)


def steps(cell, carry, x):
    outputs = []
    for step in range(STEPS):
        carry, output = cell(carry, x[:, step])
        outputs.append(np.asarray(output))
    return np.stack(outputs, 1)


def linen_numbers(params):
    known = {}
    cells = {"encoder_lstm": (linen.OptimizedLSTMCell, INPUTS), "decoder_gru": (linen.GRUCell, HIDDEN)}
    for name, (make, width) in cells.items():
        cell, x = make(HIDDEN), random(ROWS, STEPS, width)
        carry = cell.initialize_carry(KEY, x[:, 0].shape)
        known[name] = (
            x,
            steps(lambda *given, c=cell, n=name: c.apply({"params": params[n]}, *given), carry, x),
        )
    return known


def of_linen(made, folder):
    """Parameters alone, a state of training, and checkpoints of Orbax."""
    params = randomised(Speech().init(KEY, np.zeros((ROWS, STEPS, INPUTS), "float32"))["params"])
    known = linen_numbers(params)
    (folder / "linen.msgpack").write_bytes(serialization.to_bytes({"params": params}))
    behind = {f"params/{name}": pair for name, pair in known.items()}
    made.add("linen.msgpack", "flax.serialization of a linen model", behind, *USUAL)
    squares = jax.tree_util.tree_map(np.square, params)
    adam = {"0": {"count": np.array(3), "mu": params, "nu": squares}, "1": {}}  # as optax names them
    state = {"step": np.array(3), "params": params, "opt_state": adam}
    (folder / "training.msgpack").write_bytes(serialization.to_bytes(state))
    made.add("training.msgpack", "a state of training with Adam's moments", behind, *USUAL)
    for name, zarr3 in (("orbax", False), ("orbax_zarr3", True)):
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=zarr3)) as writer:
            writer.save(folder / name, params)
        made.add(name, f"Orbax, OCDBT{', Zarr 3' if zarr3 else ''}", known, *USUAL)


def of_nnx(made, folder):
    model = Twins()
    for path, value in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        target = model
        for name in path[:-1]:
            target = getattr(target, name)
        setattr(target, path[-1], nnx.Param(random(*value.get_value().shape)))
    known = {}
    for name, width in (("encoder_lstm", INPUTS), ("decoder_gru", HIDDEN)):
        cell, x = getattr(model, name), random(ROWS, STEPS, width)
        known[name] = x, steps(cell, cell.initialize_carry(x[:, 0].shape, nnx.Rngs(0)), x)
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as writer:
        writer.save(folder / "nnx", args=ocp.args.StandardSave(nnx.state(model, nnx.Param)))
    made.add("nnx", "Orbax of an nnx model", known, *USUAL)


def of_haiku(made, folder):
    for name, make in {"lstm": haiku.LSTM, "gru": haiku.GRU, "rnn": haiku.VanillaRNN}.items():

        def run(x, make=make):
            core = make(HIDDEN)
            return haiku.dynamic_unroll(core, x, core.initial_state(ROWS), time_major=False)[0]

        x = random(ROWS, STEPS, INPUTS)
        function = haiku.without_apply_rng(haiku.transform(run))
        params = randomised(function.init(KEY, x))
        file = f"haiku_{name}.npz"
        np.savez(folder / file, **traverse_util.flatten_dict(params, sep="/"))
        front = "vanilla_rnn" if name == "rnn" else name
        made.add(file, f"Haiku, {name}", {front: (x, function.apply(params, x))}, "--from", f"haiku.{name}")


def of_equinox(made, folder):
    for name, make in {"lstm": equinox.nn.LSTMCell, "gru": equinox.nn.GRUCell}.items():
        cell, x, rows = make(INPUTS, HIDDEN, key=KEY), random(ROWS, STEPS, INPUTS), []
        held = {key: random(*value.shape) for key, value in vars(cell).items() if hasattr(value, "shape")}
        for key, value in held.items():
            cell = equinox.tree_at(lambda tree, key=key: getattr(tree, key), cell, value)
        zeros = np.zeros(HIDDEN, "float32")
        for row in x:
            state, outputs = (zeros, zeros) if name == "lstm" else zeros, []
            for one in row:
                state = cell(one, state)
                outputs.append(np.asarray(state[0] if name == "lstm" else state))
            rows.append(np.stack(outputs))
        save_file(
            {f"cell.{key}": value for key, value in held.items()}, folder / f"equinox_{name}.safetensors"
        )
        said = ("--from", f"equinox.{name}")
        made.add(f"equinox_{name}.safetensors", f"Equinox, {name}", {"cell": (x, np.stack(rows))}, *said)


if __name__ == "__main__":
    made = Specimens(
        {
            "flax": flax.__version__,
            "orbax": ocp.__version__,
            "dm-haiku": haiku.__version__,
            "equinox": equinox.__version__,
        }
    )
    with TemporaryDirectory() as name:
        for save in (of_linen, of_nnx, of_haiku, of_equinox):
            save(made, Path(name))
        pack("jax", Path(name), made)
