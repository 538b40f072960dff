"""Gradients with engine="onednn", which llvm runs, beside the interpreter's in float64 and beside torch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_onednn_engine import HIDDEN, INPUTS, begin, hand_written, sequences
from tolerance import assert_close

import stepnet as sn
from stepnet import cells
from stepnet.layout.layers import layers
from stepnet.net.tolerance import tolerance
from stepnet.values.structure import leaves

Array = np.ndarray
Make = Callable[[Callable[[Any], Any]], Any]
"""What makes a layer of parameters that a function was applied to."""
BOTH = ("onednn", "llvm")


def arrays_of(value: Any) -> list[Any]:
    """The arrays of a structure, Raggeds by their values."""
    return [leaf.values if isinstance(leaf, sn.Ragged) else leaf for leaf in leaves(value)]


def mapped(value: Any, change: Callable[[Array], Array]) -> Any:
    """A structure with its arrays changed."""
    if value is None:
        return None
    if isinstance(value, sn.Ragged):
        return value.with_values(change(value.values))
    if isinstance(value, dict):
        return {name: mapped(each, change) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(each, change) for each in value)
    return change(value)


def wide(value: Any) -> Any:
    return mapped(value, lambda array: array.astype("f8"))


def as_is(value: Any) -> Any:
    return value


def drawn_like(value: Any, seed: int) -> Any:
    random = np.random.default_rng(seed)
    return mapped(value, lambda array: random.normal(size=array.shape).astype(array.dtype))


def same_gradients(
    make: Make,
    x: Any,
    *,
    engine: Any = "onednn",
    initial: Any = None,
    statics: Any = None,
    length: int = 24,
    width: int = 4 * (INPUTS + HIDDEN),
    **options: Any,
) -> sn.Gradients:
    """Asserts that gradients of everything are those of the interpreter in float64, for random cotangents."""
    (outputs, final), backward = sn.vjp(make(as_is))(
        x, engine=engine, initial=initial, statics=statics, **options
    )
    right, right_backward = sn.vjp(make(wide))(
        wide(x), engine="interpret", initial=wide(initial), statics=wide(statics), **options
    )
    for ours, theirs in zip(arrays_of((outputs, final)), arrays_of(right), strict=True):
        assert_close(ours, theirs, length, width)
    cotangents = drawn_like(outputs, 1), drawn_like(final, 2)
    made, wanted = backward(*cotangents), right_backward(*wide(cotangents))
    for kind in ("params", "inputs", "initial", "statics"):
        pairs = list(zip(arrays_of(getattr(made, kind)), arrays_of(getattr(wanted, kind)), strict=True))
        assert pairs or kind in ("initial", "statics"), kind
        for ours, theirs in pairs:
            if theirs is not None:
                assert_close(ours, theirs, length, width, dtype="float32")
    return made


def cell(name: str, reverse: bool = False, inputs: int = INPUTS, seed: int = 0) -> Make:
    row = cells.CELLS[name]
    sizes: Any = {"projected": 3} if "P" in row.further else {}
    params = row.parameters(inputs, HIDDEN, seed=seed, **sizes)
    return lambda change: cells.rnn(name, change(params), reverse=reverse)


LENGTHS = [(2, 5, 0, 5), (3,), (4, 4), (0,), (1, 7, 2, 9), ()]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", cells.CELLS)
def test_named_cells(name: str, reverse: bool):
    for lengths in LENGTHS:
        x = sequences(*lengths) if lengths else sn.Ragged.from_padded(np.zeros((0, 1, INPUTS), "f4"))
        same_gradients(cell(name, reverse), x)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["gru", "gru_reset_before", "lstm"])
def test_forms_of_calls(name: str, reverse: bool):
    make = cell(name, reverse)
    x = np.random.default_rng(0).normal(size=(3, 7, INPUTS)).astype("f4")
    same_gradients(make, x, initial=begin(name, 3))
    made = same_gradients(make, x, initial=begin(name, 3), lengths=[7, 0, 3])
    assert [bool(part.any()) for part in (made.inputs[1], made.inputs[2, 3:], made.inputs[2, :3])] == [
        0,
        0,
        1,
    ]
    same_gradients(make, x, lengths=[2, 1, 5], last_only=True)
    same_gradients(make, np.ascontiguousarray(x.transpose(1, 0, 2)), lengths=[7, 0, 3], time_major=True)
    same_gradients(make, sequences(2, 0, 4), initial=begin(name, 3), last_only=True)


# ---- however the step is written ---------------------------------------------------------------------------


def gates_apart(x: Array, h: Array, p: Any) -> tuple[Array, Array]:
    z = sn.sigmoid(x @ p["Wz"] + h @ p["Rz"] + p["bz"])
    r = 1 / (1 + np.exp(-(x @ p["Wr"] + h @ p["Rr"])))
    n = np.tanh(x @ p["Wn"] + r * (h @ p["Rn"] + p["dn"]) + p["bn"])
    h = z * h + (1 - z) * n
    return h, h


def written_the_other_way(x: Array, h: Array, p: Any) -> tuple[Array, Array]:
    """The gate writes, matrices lie the other way, and one number stretches a whole matrix."""
    z = sn.sigmoid(x @ p["Wz"].T + h @ (p["scale"] * p["Rz"]).T)
    r = sn.sigmoid(2 * (x @ p["Wr"].T) + h @ p["Rr"].T - p["bz"])
    n = np.tanh(x @ p["Wn"].T + (r * h) @ p["Rn"].T)
    h = h + z * (n - h)
    return h, h


def one_matrix_twice(x: Array, h: Array, p: Any) -> tuple[Array, Array]:
    """Weights that gates share: their gradients add up."""
    z = sn.sigmoid(x @ p["Wz"] + h @ p["Rz"] + p["bz"])
    r = sn.sigmoid(x @ p["Wz"] + h @ p["Rr"] + p["bz"])
    n = np.tanh(x @ p["Wn"] + (r * h) @ (p["Rz"] + p["Rn"]))
    h = (1 - z) * h + z * n
    return h, h


def params_of(transposed: bool) -> dict[str, Array]:
    random = np.random.default_rng(0)
    shapes = {f"W{gate}": (INPUTS, HIDDEN) for gate in "zrn"} | {
        f"R{gate}": (HIDDEN, HIDDEN) for gate in "zrn"
    }
    params = {
        name: random.normal(size=shape[::-1] if transposed else shape).astype("f4") / 3
        for name, shape in shapes.items()
    }
    vectors = {name: random.normal(size=HIDDEN).astype("f4") for name in ("bz", "bn", "dn")}
    return params | vectors | {"scale": np.array(0.7, "f4")}


SPELLINGS = {
    "gates apart": (gates_apart, False),
    "the other way": (written_the_other_way, True),
    "one matrix twice": (one_matrix_twice, False),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_a_gru(spelling: str, reverse: bool):
    step, transposed = SPELLINGS[spelling]
    params = params_of(transposed)
    made = same_gradients(
        lambda change: sn.RNN(step, change(params), memory=HIDDEN, reverse=reverse),
        sequences(2, 5, 0, 5),
        initial=begin("gru", 4),
    )
    used = {name for name, gradient in made.params.items() if gradient.any()}
    assert (
        used
        == {
            "gates apart": params.keys() - {"scale"},
            "the other way": params.keys() - {"bn", "dn"},
            "one matrix twice": params.keys() - {"Wr", "bn", "dn", "scale"},
        }[spelling]
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_beside_differences(spelling: str):
    """Slopes along random directions of each parameter, beside central differences of values in float64."""
    step, transposed = SPELLINGS[spelling]
    params, x = params_of(transposed), sequences(2, 5, 0, 5)
    (outputs, final), backward = sn.vjp(sn.RNN(step, params, memory=HIDDEN))(x, engine="onednn")
    cotangents = drawn_like(outputs, 1), drawn_like(final, 2)
    made = backward(*cotangents).params

    exact = sn.RNN(step, wide(params), memory=HIDDEN)

    def value(changed: dict[str, Array]) -> float:
        y, last = exact.with_params(changed)(wide(x), engine="interpret")
        return float((y.values * cotangents[0].values).sum() + (last * cotangents[1]).sum())

    for place, (name, array) in enumerate(params.items()):
        direction = np.random.default_rng(place).normal(size=array.shape)
        direction = direction / np.abs(direction).sum()
        ends = [value(wide(params) | {name: array + sign * 1e-4 * direction}) for sign in (1, -1)]
        right = (ends[0] - ends[1]) / 2e-4
        scale = max(1, float(np.abs(made[name]).max()))
        assert abs(float((made[name] * direction).sum()) - right) <= scale * tolerance("float32", 24, 40), (
            name
        )


def test_gates_joined():
    random = np.random.default_rng(0)
    params = {name: random.normal(size=(HIDDEN + INPUTS, HIDDEN)).astype("f4") / 3 for name in "ZRN"}
    params["z"] = np.ones(HIDDEN, "f4")
    same_gradients(lambda change: sn.RNN(hand_written, change(params), memory=HIDDEN), sequences(2, 5, 0, 5))


def test_several_inputs_and_two_memories_the_other_way_round():
    """Coupled gates besides: i is 1 - f, so both have the weights of f."""

    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        c, h = memory["first"], memory["second"]
        f, g, o = np.split(x["a"] @ p["A"] + h @ p["R"] + x["b"] @ p["B"], 3, axis=-1)
        f = sn.sigmoid(f + 1 + p["peephole"] * c)
        c = f * c + (1 - f) * np.tanh(g)
        h = sn.sigmoid(o) * np.tanh(c)
        return h, {"first": c, "second": h}

    random = np.random.default_rng(0)
    shapes = {
        "A": (INPUTS, 3 * HIDDEN),
        "B": (2, 3 * HIDDEN),
        "R": (HIDDEN, 3 * HIDDEN),
        "peephole": (HIDDEN,),
    }
    params = {name: random.normal(size=shape).astype("f4") / 3 for name, shape in shapes.items()}
    a = sequences(2, 5, 0, 5)
    b = a.with_values(a.values[:, :2] + 1)
    same_gradients(
        lambda change: sn.RNN(step, change(params), memory={"first": HIDDEN, "second": HIDDEN}),
        {"a": a, "b": b},
    )


def test_inputs_of_two_axes_and_inputs_that_enter_as_they_are():
    def flat(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x.reshape(-1, INPUTS) @ p["W"] + h @ p["R"])
        return h, h

    def entering(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x + h @ p["R"])
        return h, h

    random = np.random.default_rng(0)
    params = {"W": random.normal(size=(INPUTS, HIDDEN)).astype("f4"), "R": np.eye(HIDDEN, dtype="f4") / 2}
    x = sequences(2, 5)
    same_gradients(
        lambda change: sn.RNN(flat, change(params), memory=HIDDEN),
        x.with_values(x.values.reshape(-1, 2, 2)),
    )
    wider = sn.Ragged.from_list([random.normal(size=(n, HIDDEN)).astype("f4") for n in (2, 5)])
    same_gradients(lambda change: sn.RNN(entering, change({"R": params["R"]}), memory=HIDDEN), wider)


# ---- several recurrences, and work between them ------------------------------------------------------------


def mine(x: Array, h: Array, p: Any) -> tuple[Array, Array]:
    """No cell that oneDNN has."""
    h = np.sin(x @ p["W"] + h @ p["R"])
    return h, h


def mixed(change: Callable[[Any], Any]) -> sn.Stack:
    """A GRU and an LSTM in both directions, a cell of one's own, and a simple recurrence."""
    random = np.random.default_rng(3)
    own = {
        name: random.normal(size=(n, HIDDEN)).astype("f4") / 3
        for name, n in (("W", 2 * HIDDEN), ("R", HIDDEN))
    }
    both = sn.Bidirectional(cell("gru")(change), cell("lstm", reverse=True)(change))
    return sn.Stack(
        [both, sn.RNN(mine, change(own), memory=HIDDEN), cell("simple_rnn", inputs=HIDDEN)(change)]
    )


def test_a_stack_on_two_engines():
    x = sequences(2, 5, 0, 5)
    same_gradients(mixed, x, engine=BOTH, length=72)


def test_layers_of_both_directions():
    def make(change: Callable[[Any], Any]) -> sn.Stack:
        both = sn.Bidirectional(cell("gru")(change), cell("lstm", reverse=True)(change))
        return sn.Stack([both, cell("gru_reset_before", inputs=2 * HIDDEN)(change)])

    same_gradients(make, sequences(2, 5, 0, 5), length=72)
    x = np.random.default_rng(0).normal(size=(3, 7, INPUTS)).astype("f4")
    same_gradients(make, x, lengths=[7, 0, 3], length=72)


def test_nested_sequences():
    """Words inside of sentences: the inner recurrence runs over the words of all sentences at once."""

    def make(change: Callable[[Any], Any]) -> sn.RNN:
        words = cell("gru")(change)

        def sentence(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
            _, last = words(x, initial="zeros")
            h = np.tanh(last @ p["W"] + h @ p["R"])
            return h, h

        params = {name: np.full((HIDDEN, HIDDEN), 0.1, "f4") for name in "WR"}
        return sn.RNN(sentence, change(params), memory=HIDDEN)

    x = sequences(2, 5, 0, 3, 1).group([2, 0, 3])
    same_gradients(make, x)


def test_an_inner_recurrence_that_needs_the_memory():
    def make(change: Callable[[Any], Any]) -> sn.RNN:
        words = cell("gru")(change)

        def sentence(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
            _, last = words(x, initial=h)
            h = np.tanh(last @ p["W"])
            return h, h

        return sn.RNN(sentence, change({"W": np.eye(HIDDEN, dtype="f4")}), memory=HIDDEN)

    x = sequences(2, 5, 0, 3, 1).group([2, 0, 3])
    same_gradients(make, x, engine=BOTH)


def test_statics():
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ p["W"] + h @ p["R"] + statics)
        return h, h

    random = np.random.default_rng(0)
    params = {"W": random.normal(size=(INPUTS, HIDDEN)).astype("f4"), "R": np.eye(HIDDEN, dtype="f4") / 2}
    statics = random.normal(size=(4, HIDDEN)).astype("f4")

    def make(change: Callable[[Any], Any]) -> sn.RNN:
        return sn.RNN(step, change(params), memory=HIDDEN)

    same_gradients(make, sequences(2, 5, 0, 5), engine=BOTH, statics=statics)


# ---- losses ------------------------------------------------------------------------------------------------


@pytest.mark.long(each=True)
@pytest.mark.parametrize("engine", ["onednn", BOTH])
@pytest.mark.parametrize("last_only", [False, True])
def test_a_loss(engine: Any, last_only: bool):
    def loss(y: Any, target: Any, final: Any) -> Any:
        return ((y - target) ** 2).sum(axis=-1) + (final["c"] if last_only else 0 * target).sum(axis=-1)

    def plain(y: Any, target: Any) -> Any:
        return ((y - target) ** 2).sum(axis=-1)

    chosen: Any = loss if last_only else plain
    x = sequences(2, 5, 1, 5)
    shape = (4, HIDDEN) if last_only else (len(x.values), HIDDEN)
    targets = np.random.default_rng(7).normal(size=shape).astype("f4")
    make = cell("lstm")

    def aimed(array: Array) -> Any:
        return array if last_only else x.with_values(array)

    kinds = ("params", "inputs", "initial")
    train = sn.value_and_grad(chosen, make(as_is))
    value, made = train(x, aimed(targets), wrt=kinds, last_only=last_only, engine=engine)
    right = sn.value_and_grad(chosen, make(wide))
    wanted_value, wanted = right(
        wide(x), aimed(targets.astype("f8")), wrt=kinds, last_only=last_only, engine="interpret"
    )
    assert_close(value, wanted_value, 24, 40, dtype="float32")
    for kind in kinds:
        for ours, theirs in zip(
            arrays_of(getattr(made, kind)), arrays_of(getattr(wanted, kind)), strict=True
        ):
            assert_close(ours, theirs, 24, 40, dtype="float32")


def test_parameters_of_a_call_and_gradients_twice():
    rnn = cell("gru")(as_is)
    run, x = sn.vjp(rnn), sequences(2, 5, 0, 5)
    other = {name: -2 * array for name, array in rnn.params.items()}
    (outputs, final), backward = run(x, params=other, engine="onednn")
    (_, _), between = run(sequences(2, 5, 0, 5, seed=1), engine="onednn")
    between(outputs)
    first, second = backward(outputs, final), backward(outputs, final)
    _, right = sn.vjp(rnn.with_params(other))(x, engine="interpret")
    wanted = right(outputs, final)
    for name in rnn.params:
        np.testing.assert_array_equal(first.params[name], second.params[name])
        assert_close(first.params[name], wanted.params[name], 24, 40)


def test_training_changes_parameters_in_place():
    rnn = cell("gru")(as_is)
    run, x = sn.vjp(rnn), sequences(2, 5)
    params = {name: np.array(array) for name, array in rnn.params.items()}
    for _ in range(3):
        (outputs, final), backward = run(x, params=params, engine="onednn")
        gradients = backward(outputs, final).params
        (_, _), right = run(x, params={name: np.array(a) for name, a in params.items()}, engine="interpret")
        for name, wanted in right(outputs, final).params.items():
            assert_close(gradients[name], wanted, 24, 40)
            params[name] -= 0.1 * gradients[name]


# ---- what oneDNN would refuse ------------------------------------------------------------------------------


def test_c_of_each_step():
    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        i, f, g, o = np.split(x @ p["W"] + memory["h"] @ p["R"], 4, axis=-1)
        c = sn.sigmoid(f) * memory["c"] + sn.sigmoid(i) * np.tanh(g)
        h = sn.sigmoid(o) * np.tanh(c)
        return (h, c), {"h": h, "c": c}

    random = np.random.default_rng(0)
    params = {
        name: random.normal(size=(n, 4 * HIDDEN)).astype("f4") / 3
        for name, n in (("W", INPUTS), ("R", HIDDEN))
    }

    def make(change: Callable[[Any], Any]) -> sn.RNN:
        return sn.RNN(step, change(params), memory={"h": HIDDEN, "c": HIDDEN})

    same_gradients(make, sequences(2, 5, 0, 5), engine=BOTH)


def test_a_checkpoint_and_float64() -> None:
    make, x = cell("gru"), sequences(2, 5)
    cases: Any = [(as_is, x, {"checkpoint": "sqrt"}), (wide, wide(x), {})]
    for change, values, options in cases:
        run = sn.vjp(make(change))
        (outputs, _), backward = run(values, engine="onednn", **options)
        (_, _), right = run(values, **options)
        made, wanted = backward(outputs), right(outputs)
        np.testing.assert_array_equal(made.inputs.values, wanted.inputs.values)
        np.testing.assert_array_equal(made.params["W"], wanted.params["W"])


def test_explain_names_the_engine_that_runs() -> None:
    run = sn.vjp(mixed(as_is))
    run(sequences(2))
    for engine in ("onednn", BOTH):
        text = run.explain(engine=engine)
        assert "  engine      llvm\n" in text
        assert text == run.explain()


# ---- torch -------------------------------------------------------------------------------------------------

TORCH = {
    "torch.gru": torch.nn.GRU,
    "torch.lstm": torch.nn.LSTM,
    "torch.rnn": torch.nn.RNN,
}


@pytest.mark.parametrize("layout", TORCH)
def test_beside_torch(layout: str):
    """A torch layer as stepnet's, its gradients on oneDNN beside torch's own in float64."""
    torch.manual_seed(0)
    both: Any = TORCH[layout](INPUTS, HIDDEN, batch_first=True, bidirectional=True, dtype=torch.float64)
    weights = {name: p.detach().numpy().astype("f4") for name, p in both.named_parameters()}
    semantics = {"candidate_activation": "tanh"} if layout == "torch.rnn" else {}
    layer = layers(weights, layout, semantics=semantics)
    lengths = [5, 2, 4]
    x = np.random.default_rng(0).normal(size=(3, 5, INPUTS)).astype("f4")
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(tensor, lengths, batch_first=True, enforce_sorted=False)
    theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(both(packed)[0], batch_first=True)
    (outputs, _), backward = sn.vjp(layer)(x, lengths=lengths, engine="onednn")
    assert_close(outputs, theirs.detach().numpy(), 24, 40)
    d = np.random.default_rng(1).normal(size=outputs.shape).astype("f4")
    (theirs * torch.tensor(d, dtype=torch.float64)).sum().backward()
    made = backward(d)
    assert tensor.grad is not None
    assert_close(made.inputs, tensor.grad.numpy(), 24, 40)
    total = {name: p.grad.abs().sum().item() for name, p in both.named_parameters()}
    assert all(total.values())
    ours = [made.params["forward"], made.params["backward"]]
    for way, suffix in zip(ours, ("", "_reverse"), strict=True):
        order = {"torch.gru": "rzn", "torch.lstm": "ifgo", "torch.rnn": "n"}[layout]
        for name, kind in (("W", "weight_ih"), ("R", "weight_hh"), ("b", "bias_ih"), ("d", "bias_hh")):
            right = dict(both.named_parameters())[f"{kind}_l0{suffix}"].grad.numpy()
            assert_close(np.asarray(joined(way[name], order)), right.T, 24, 40, dtype="float32")


def joined(value: Any, order: str) -> Array:
    """Gates side by side, in an order."""
    return np.concatenate([value[gate] for gate in order], -1) if isinstance(value, dict) else value
