"""Training in blocks of steps: the same function and gradients as step by step, and what does not fit."""

import re
from typing import Any

import numpy as np
import pytest
from callers import threads
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import CPU
from same_bits import assert_same_bits
from tolerance import assert_close

import stepnet as sn
import stepnet.model.gradients.in_blocks
from stepnet.compiler.grad.blocks import BlockChoice, block_choice, in_blocks, matrices
from stepnet.compiler.net import Recur
from stepnet.compiler.values import leaves, rebuild

Array = np.ndarray
H, K, V = 2, 3, 4
KEY, VALUE, HEAD = (H, K), (H, V), (H,)
CELLS: dict[str, tuple[dict[str, tuple[int, ...]], Any, dict[str, tuple[int, ...]]]] = {
    "delta_rule": ({"q": KEY, "k": KEY, "v": VALUE, "beta": HEAD}, (H, K, V), {}),
    "gated_delta_rule": ({"q": KEY, "k": KEY, "v": VALUE, "g": HEAD, "beta": HEAD}, (H, K, V), {}),
    "kda": ({"q": KEY, "k": KEY, "v": VALUE, "g": KEY, "beta": HEAD}, (H, K, V), {}),
    "gated_delta_product": (
        {"q": KEY, "k": (2, *KEY), "v": (2, *VALUE), "g": HEAD, "beta": (2, *HEAD)},
        (H, K, V),
        {},
    ),
    "linear_attention": ({"q": KEY, "k": KEY, "v": VALUE}, (H, K, V), {}),
    "retnet": ({"q": KEY, "k": KEY, "v": VALUE}, (H, K, V), {"g": HEAD}),
    "simple_gla": ({"q": KEY, "k": KEY, "v": VALUE, "g": HEAD}, (H, K, V), {}),
    "gla": ({"q": KEY, "k": KEY, "v": VALUE, "g": KEY}, (H, K, V), {}),
    "hgrn2": ({"q": KEY, "v": VALUE, "g": KEY}, (H, K, V), {}),
    "rwkv6": ({"r": KEY, "k": KEY, "v": VALUE, "w": KEY}, (H, K, V), {"u": KEY}),
    "rwkv7": ({"r": KEY, "k": KEY, "v": VALUE, "w": KEY, "a": KEY, "b": KEY}, (H, K, V), {}),
    "mlstm": (
        {"q": KEY, "k": KEY, "v": VALUE, "i": HEAD, "f": HEAD},
        {"C": (H, K, V), "n": KEY, "m": HEAD},
        {},
    ),
    "mamba2": ({"x": KEY, "dt": HEAD, "B": (1, V), "C": (1, V)}, (H, K, V), {"A": HEAD, "D": HEAD}),
    "ttt_linear": (
        {"q": KEY, "k": KEY, "v": KEY, "eta": HEAD},
        {"W": (H, K, K), "b": KEY},
        {"scale": KEY, "shift": KEY},
    ),
}


def numbers(seed: int, shapes: dict[str, tuple[int, ...]], *lead: int, dtype: str = "float64") -> Any:
    """Random arrays; logarithms of decays are negative, and rates small."""
    random = np.random.default_rng(seed)
    signs = {"g": -1, "w": -1, "A": -1, "beta": 1, "eta": 0.1, "dt": 1}

    def array(name: str, shape: tuple[int, ...]) -> Array:
        x = random.standard_normal((*lead, *shape)) / 2
        return (np.abs(x) * signs[name] if name in signs else x).astype(dtype)

    return {name: array(name, shape) for name, shape in shapes.items()}


def cell(name: str, dtype: str = "float64", reverse: bool = False) -> tuple[sn.RNN, Any]:
    """A cell, and inputs of 3 sequences of up to 5 steps."""
    inputs, memory, params = CELLS[name]
    own = numbers(1, params, dtype=dtype) or None
    rnn = sn.RNN(getattr(sn.cells, name), own, memory=memory, reverse=reverse)
    return rnn, numbers(2, inputs, 3, 5, dtype=dtype)


def recur_of(rnn: sn.RNN, x: Any) -> Recur:
    """The recurrence of a call."""
    rnn(x)
    return next(node.recur for node in rnn.plan.traced.nodes if node.operation == "recur")


def blocks_of(recur: Recur, size: int) -> BlockChoice:
    """Blocks of so many steps, whether they pay or not."""
    fitting = matrices(recur)
    assert not isinstance(fitting, str)
    return BlockChoice(size, in_blocks(recur, fitting, size))


def results(
    monkeypatch: pytest.MonkeyPatch, rnn: sn.RNN, size: int, x: Any, engine: str = "interpret", **options: Any
) -> list[Array]:
    """Outputs, last memories and gradients for random cotangents, in blocks of so many steps."""

    def choices(net: Any, *others: Any) -> dict[int, BlockChoice]:
        recurrences = {n: node.recur for n, node in enumerate(net.nodes) if node.operation == "recur"}
        return {n: blocks_of(recur, size) for n, recur in recurrences.items() if size > 1}

    monkeypatch.setattr(stepnet.model.gradients.in_blocks, "block_choices", choices)
    (outputs, final), backward = sn.vjp(rnn)(x, engine=engine, **options)
    random = np.random.default_rng(5)

    def like(value: Any) -> Any:
        arrays = [random.standard_normal(leaf.shape).astype(leaf.dtype) for leaf in leaves(value)]
        return rebuild(value, arrays)

    gradients = backward(like(outputs), like(final))
    every = (outputs, final, gradients.params, gradients.inputs, gradients.initial, gradients.statics)
    return [leaf for part in every if part is not None for leaf in leaves(part)]


def assert_same(ours: list[Array], right: list[Array], length: int, dtype: str = "float64") -> None:
    """The same numbers but for rounding."""
    for a, b in zip(ours, right, strict=True):
        assert_close(a, b, 2 * length, K * V, dtype)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_in_blocks_is_the_cell(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn, x = cell(name, reverse=name == "kda")
    lengths = [5, 0, 4]
    right = results(monkeypatch, rnn, 1, x, lengths=lengths)
    assert_same(results(monkeypatch, rnn, 2, x, lengths=lengths), right, 9)


@pytest.mark.parametrize("name", CELLS)
def test_no_matrix_is_made_between_the_steps_of_a_block(name: str) -> None:
    rnn, x = cell(name)
    recur = recur_of(rnn, x)
    fitting = matrices(recur)
    assert not isinstance(fitting, str)
    (memory,) = fitting
    body, size = in_blocks(recur, fitting, 4).body, recur.body.type_of(memory).size
    made = [n for n, node in enumerate(body.nodes) if node.kind == "pointwise" and node.type.size >= size]
    summed = {node.inputs[0] for node in body.nodes if node.operation == "sum"}
    chain = set[int]()  # what the next memory is the sum of
    waiting = [
        body.results[-1]
        if not isinstance(rnn.memory, dict)
        else next(
            result
            for result in body.results
            if body.type_of(result).shape == recur.body.type_of(memory).shape
        )
    ]
    while waiting:
        number = waiting.pop()
        chain.add(number)
        waiting += [n for n in body.nodes[number].inputs if body.nodes[n].kind == "pointwise" and n in made]
    assert {*made} <= chain | summed


def with_masks(x: Any, S: Any, p: Any) -> Any:
    S = np.where(x["k"][..., None] > 0, S, 0)
    return (S * x["q"][..., None]).sum(-2), S


def with_tanh(x: Any, S: Any, p: Any) -> Any:
    S = np.tanh(S) + x["k"][..., None] * x["v"][..., None, :]
    return (S * x["q"][..., None]).sum(-2), S


def that_gives_all(x: Any, S: Any, p: Any) -> Any:
    S = S + x["k"][..., None] * x["v"][..., None, :]
    return S, S


def with_a_decay_of_each(x: Any, S: Any, p: Any) -> Any:
    S = S * np.exp(-np.abs(x["k"][..., None] * x["v"][..., None, :]))
    return (S * x["q"][..., None]).sum(-2), S


def with_an_index(x: Any, S: Any, p: Any, index: Any) -> Any:
    S = S + x["k"][..., None] * x["v"][..., None, :]
    return (S * x["q"][..., None]).sum(-2) * index[:, None, None], S


def of_vectors(x: Any, h: Any, p: Any) -> Any:
    return h, h + x["v"].sum(-2)


@pytest.mark.parametrize(
    ("step", "memory", "reason"),
    [
        (with_masks, (H, K, V), "S is read by where, not by a sum"),
        (with_tanh, (H, K, V), "S is read by tanh, not by a sum"),
        (that_gives_all, (H, K, V), "S itself is a result"),
        (with_a_decay_of_each, (H, K, V), "S is multiplied by a value that is as large"),
        (with_an_index, (H, K, V), "a step reads its index"),
        (of_vectors, V, "no memory is a matrix"),
    ],
)
def test_what_does_not_fit_is_refused(step: Any, memory: Any, reason: str) -> None:
    x = numbers(0, {"q": KEY, "k": KEY, "v": VALUE}, 2, 3)
    found = recur_of(sn.RNN(step, memory=memory), x)
    assert str(matrices(found)).startswith(reason)
    choice = block_choice(found, CPU.costs.blocks)
    assert (choice.size, choice.recur) == (1, found)
    assert choice.reason.startswith(reason)


def linear_step(decay: str, corrections: int, is_delta: bool, reads: int) -> Any:
    """A step with a matrix that is linear in itself."""

    def step(x: Any, memory: Any, p: Any, statics: Any) -> Any:
        S, norm = memory
        before = (S * x["q"][:, :, None]).sum(1)
        if decay != "none":
            a = np.exp(-np.abs(x[decay]))
            wide = {"g": lambda: a[:, None, None], "k1": lambda: a[:, :, None], "v1": lambda: a[:, None, :]}
            S = S * wide[decay]()
        for number in range(corrections):
            k, v = x[f"k{number}"], x[f"v{number}"] * statics
            d = v - (S * k[:, :, None]).sum(1) if is_delta else v
            S = S + k[:, :, None] * d[:, None, :] / 4
        norm = np.tanh(norm + x["k0"] @ p)
        outputs = [(x["q"][:, :, None] * S).sum(1) * norm, before, (S * x["v0"][:, None, :]).sum(2) @ p]
        return tuple(outputs[:reads]), (S - 0.5 * x["q"][:, :, None] * norm[:, None, :], norm)

    return step


@pytest.mark.long(examples=3)
@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["none", "g", "k1", "v1"]),
    st.integers(1, 2),
    st.booleans(),
    st.integers(1, 3),
    st.lists(st.integers(0, 7), min_size=1, max_size=3),
    st.booleans(),
)
def test_random_linear_steps(
    decay: str, corrections: int, is_delta: bool, reads: int, lengths: list[int], reverse: bool
) -> None:
    shapes = {"q": (K,), "k0": (K,), "k1": (K,), "v0": (V,), "v1": (V,), "g": ()}
    x = numbers(3, shapes, len(lengths), 7)
    step = linear_step(decay, corrections, is_delta, reads)
    rnn = sn.RNN(step, numbers(4, {"p": (K, V)})["p"], memory=((K, V), V), reverse=reverse)
    options = {
        "lengths": lengths,
        "statics": np.linspace(0.5, 1, len(lengths))[:, None] * np.ones(V),
        "initial": tuple(numbers(6, {"S": (K, V), "n": (V,)}, len(lengths)).values()),
    }
    with pytest.MonkeyPatch.context() as patch:
        right = results(patch, rnn, 1, x, **options)
        assert_same(results(patch, rnn, 2, x, **options), right, 7)


@pytest.mark.parametrize("time_major", [False, True])
def test_blocks_in_machine_code(time_major: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn, x = cell("gated_delta_rule", "float32")
    if time_major:
        x = {name: np.ascontiguousarray(value.swapaxes(0, 1)) for name, value in x.items()}
    wide = {name: value.astype("float64") for name, value in x.items()}
    right = results(monkeypatch, cell("gated_delta_rule")[0], 1, wide, time_major=time_major)
    ours = results(monkeypatch, rnn, 4, x, "llvm", time_major=time_major)
    assert_same(ours, right, 9, "float32")


def test_a_large_matrix_is_trained_in_blocks_and_a_small_one_is_not() -> None:
    sizes = []
    for keys in (4, 64):
        shapes = {"q": (1, keys), "k": (1, keys), "v": (1, keys), "g": (1,), "beta": (1,)}
        rnn = sn.RNN(sn.cells.gated_delta_rule, memory=(1, keys, keys))
        sizes.append(
            block_choice(recur_of(rnn, numbers(0, shapes, 1, 1, dtype="float32")), CPU.costs.blocks).size
        )
    assert sizes == [1, 4]


LENGTHS = [9, 4, 0, 7, 3] * 5


@pytest.fixture(scope="module")
def in_fours() -> tuple[Any, Any]:
    """The gradient of a recurrence with a parameter, which runs in blocks of 4 steps, and its inputs."""
    width = 1, 20
    rnn = sn.RNN(sn.cells.rwkv6, numbers(1, {"u": width}, dtype="float32"), memory=(1, 20, 20))
    x = numbers(2, dict.fromkeys("rkvw", width), len(LENGTHS), max(LENGTHS), dtype="float32")
    rnn(x, lengths=LENGTHS, engine="interpret")
    run = sn.vjp(rnn)
    assert blocks_line(run) == "4 steps"
    return run, x


def test_gradients_in_blocks_have_the_same_bits_in_any_batch(in_fours: tuple[Any, Any]) -> None:
    run, x = in_fours
    (outputs, final), backward = run(x, lengths=LENGTHS)
    gradients = backward(outputs, final)
    for row, length in enumerate(LENGTHS[:5]):
        alone = {name: value[row : row + 1, :length] for name, value in x.items()}
        (part, last), finish = run(alone)
        made = finish(part, last)
        inputs = {name: value[row, :length] for name, value in gradients.inputs.items()}
        assert_same_bits((part[0], last[0]), (outputs[row, :length], final[row]))
        assert_same_bits({name: value[0] for name, value in made.inputs.items()}, inputs)
        assert_same_bits(made.initial[0], gradients.initial[row])


@pytest.mark.usefixtures("small_calls_are_shared")
def test_gradients_in_blocks_have_the_same_bits_for_any_number_of_threads(in_fours: tuple[Any, Any]) -> None:
    (run, x), made = in_fours, list[Any]()
    for count in (1, 2, 3):
        with threads(count):
            (outputs, final), backward = run(x, lengths=LENGTHS)
            gradients = backward(outputs, final)
        made.append((outputs, final, gradients.params, gradients.inputs, gradients.initial))
    for other in made[1:]:
        assert_same_bits(other, made[0])


def attention(width: int) -> sn.RNN:
    """Linear attention of one head, which has run."""
    rnn = sn.RNN(sn.cells.linear_attention, memory=(1, width, width))
    shapes = dict.fromkeys("qkv", (1, width))
    rnn(numbers(0, shapes, 1, 1, dtype="float32"), engine="interpret")
    return rnn


def test_explain_says_how_many_steps_run_at_a_time() -> None:
    text = sn.vjp(attention(64)).explain()
    assert "\n  blocks      4 steps\n" in text
    assert "backward, 4 steps at a time" in text
    assert "memory, for 4 steps f32[1, 64, 64] 4.1 kB per step" in " ".join(text.split())


def blocks_line(vjp: Any, **options: Any) -> str:
    """The line of a gradient's text about blocks."""
    head = vjp.explain(**options).partition("\n\n")[0]
    (line,) = (line for line in head.splitlines() if line.startswith("  blocks"))
    return line.removeprefix("  blocks").strip()


def test_explain_says_why_there_are_no_blocks() -> None:
    small = blocks_line(sn.vjp(attention(4)))
    assert re.fullmatch(r"1 step: blocks of 2 would cost 1\.\d\d of single steps, and pay below 0\.9", small)
    pieces = blocks_line(sn.vjp(attention(64)), checkpoint=3)
    assert pieces == "1 step: a gradient with checkpoint= runs step by step"


def test_explain_of_a_stack_says_it_of_each_recurrence() -> None:
    last = sn.RNN(lambda x, h, p: (x + h, x + h), memory=(1, 64))
    stack = sn.Stack([attention(64), last])
    stack(numbers(0, dict.fromkeys("qkv", (1, 64)), 1, 1, dtype="float32"), engine="interpret")
    assert blocks_line(sn.vjp(stack)) == "4 steps; 1 step: no memory is a matrix"


def test_explain_of_nested_sequences_says_why_there_are_no_blocks() -> None:
    words = sn.RNN(lambda x, h, p: (x + h, x + h), memory=2)

    def step(x: Any, h: Any, p: Any) -> Any:
        h = h + words(x, initial="zeros")[1]
        return h, h

    rnn = sn.RNN(step, memory=2)
    rnn(sn.Ragged(np.ones((3, 2)), (np.array([0, 2]), np.array([0, 1, 3]))), engine="interpret")
    assert blocks_line(sn.vjp(rnn)) == "1 step: a sequence has sequences inside"
