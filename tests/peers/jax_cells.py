"""The results of the cells of Flax, Haiku and Equinox."""

import equinox
import flax
import flax.linen as linen
import haiku
import jax
import numpy as np
from case import HIDDEN, INPUTS, ROWS, STEPS, case, random, save
from flax import nnx

KEY = jax.random.PRNGKey(0)


def randomised(tree):
    return jax.tree_util.tree_map(lambda leaf: random(*leaf.shape), tree)


def named(tree):
    return {"/".join(path): value for path, value in flax.traverse_util.flatten_dict(tree).items()}


def from_linen(layout, cell):
    x = random(ROWS, STEPS, INPUTS)
    carry = cell.initialize_carry(KEY, x[:, 0].shape)
    params = randomised(cell.init(KEY, carry, x[:, 0]))
    outputs = []
    for step in range(STEPS):
        carry, output = cell.apply(params, carry, x[:, step])
        outputs.append(output)
    return case(layout, named(params["params"]), x, np.stack(outputs, 1))


def from_nnx(layout, cell):
    x = random(ROWS, STEPS, INPUTS)
    arrays = {}
    for path, value in nnx.to_flat_state(nnx.state(cell, nnx.Param)):
        arrays["/".join(map(str, path))] = random(*value.get_value().shape)
        target = cell
        for part in path[:-1]:
            target = getattr(target, part)
        setattr(target, path[-1], nnx.Param(arrays["/".join(map(str, path))]))
    carry, outputs = cell.initialize_carry((ROWS, INPUTS), nnx.Rngs(0)), []
    for step in range(STEPS):
        carry, output = cell(carry, x[:, step])
        outputs.append(output)
    return case(layout, arrays, x, np.stack(outputs, 1))


def from_haiku(layout, make, **semantics):
    x = random(ROWS, STEPS, INPUTS)

    def run(x):
        core = make()
        return haiku.dynamic_unroll(core, x, core.initial_state(ROWS), time_major=False)[0]

    function = haiku.without_apply_rng(haiku.transform(run))
    params = randomised(function.init(KEY, x))
    arrays = {}
    for module, values in params.items():
        arrays.update({f"{module}/{name}": value for name, value in values.items()})
    return case(layout, arrays, x, function.apply(params, x), semantics)


def from_equinox(layout, cell, both):
    x = random(ROWS, STEPS, INPUTS)
    arrays = {}
    for name in ("weight_ih", "weight_hh", "bias", "bias_n"):
        if hasattr(cell, name):
            arrays[name] = random(*getattr(cell, name).shape)
            cell = equinox.tree_at(lambda c, n=name: getattr(c, n), cell, arrays[name])
    rows = []
    for row in x:
        zeros = np.zeros(HIDDEN, "float32")
        state, outputs = (zeros, zeros) if both else zeros, []
        for one in row:
            state = cell(one, state)
            outputs.append(state[0] if both else state)
        rows.append(np.stack(outputs))
    return case(layout, arrays, x, np.stack(rows))


if __name__ == "__main__":
    rngs = nnx.Rngs(0)
    save(
        [
            from_linen("flax.rnn", linen.SimpleCell(HIDDEN)),
            from_linen("flax.gru", linen.GRUCell(HIDDEN)),
            from_linen("flax.mgu", linen.MGUCell(HIDDEN)),
            from_linen("flax.lstm", linen.LSTMCell(HIDDEN)),
            from_linen("flax.lstm", linen.OptimizedLSTMCell(HIDDEN)),
            from_nnx("nnx.rnn", nnx.SimpleCell(INPUTS, HIDDEN, rngs=rngs)),
            from_nnx("nnx.gru", nnx.GRUCell(INPUTS, HIDDEN, rngs=rngs)),
            from_nnx("nnx.lstm", nnx.LSTMCell(INPUTS, HIDDEN, rngs=rngs)),
            from_nnx("nnx.optimized_lstm", nnx.OptimizedLSTMCell(INPUTS, HIDDEN, rngs=rngs)),
            from_haiku("haiku.rnn", lambda: haiku.VanillaRNN(HIDDEN)),
            from_haiku("haiku.gru", lambda: haiku.GRU(HIDDEN)),
            from_haiku("haiku.lstm", lambda: haiku.LSTM(HIDDEN)),
            from_equinox("equinox.gru", equinox.nn.GRUCell(INPUTS, HIDDEN, key=KEY), False),
            from_equinox("equinox.lstm", equinox.nn.LSTMCell(INPUTS, HIDDEN, key=KEY), True),
        ],
        {"flax": flax.__version__, "dm-haiku": haiku.__version__, "equinox": equinox.__version__},
    )
