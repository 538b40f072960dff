"""The with-block builder makes the net that tracing makes, and `foreach` is the loop it says it is; both are
compared with plain loops over NumPy arrays.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close
from zoo import uniform

import stepnet as sn
from stepnet.errors import InputError, StepError
from stepnet.model.builder import Memory, RNNOp, add_two, matmul

Array = np.ndarray
F32 = np.float32
ENGINES = pytest.mark.parametrize("engine", ["interpret", "llvm"])
LENGTHS = (3, 0, 1, 4)
numbers = partial(uniform, dtype="float64")


def ragged(seed: int, features: int | tuple[int, ...], dtype: Any = np.float64) -> sn.Ragged:
    shape = (features,) if isinstance(features, int) else features
    return sn.Ragged.from_list(
        [numbers(length, *shape, seed=seed + n, dtype=dtype) for n, length in enumerate(LENGTHS)]
    )


# ---- the program of the RNN operator's design -------------------------------------------------------
#
# As printed there:                                    Mended here:
#
#   W = pd.Variable(shape=[20, 30])                    W makes 20 numbers of an x of 30, so X is 30 wide; U,
#   U = pd.Variable(shape=[20, 30])                    which takes a memory of 20 to the same 20, is [20, 20]:
#                                                      as printed, W x and U h cannot meet.
#   new_state = pd.add_two(                            add_two gets its two, in place of one sum.
#       pd.matmul(W, x) + pd.matmul(U, h.pre_state()))
#
# `a` has a row of 20 for each sequence; parameters are NumPy arrays; `pd` is `stepnet`, which keeps the
# program's own words in `stepnet.model.builder`.


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_ragged", [True, False])
def test_the_program_of_the_design(engine: str, dtype: Any, is_ragged: bool) -> None:
    X: Any = ragged(0, 30, dtype) if is_ragged else numbers(4, 5, 30, seed=0, dtype=dtype)
    a = numbers(4, 20, seed=1, dtype=dtype)
    W = numbers(20, 30, seed=2, dtype=dtype, scale=0.2)
    U = numbers(20, 20, seed=3, dtype=dtype, scale=0.2)

    rnn = sn.create_rnn_op(output_num=1)
    with rnn.stepnet():
        x = rnn.add_input(X)
        h = rnn.add_memory(init=a)
        new_state = sn.builder.add_two(sn.builder.matmul(W, x), sn.builder.matmul(U, h.pre_state()))
        h.update(new_state)
        rnn.add_outputs(h)

    out = rnn(engine=engine)
    last = rnn(output_all_steps=False, engine=engine)

    assert isinstance(out, sn.Ragged if is_ragged else np.ndarray)
    assert out.dtype == last.dtype == dtype
    for place, sequence in enumerate(X):
        state = a[place].astype(np.float64)
        for t, step in enumerate(sequence):
            state = W.astype(np.float64) @ step + U.astype(np.float64) @ state
            assert_close(out[place][t], state, length=5, width=50)
        assert len(out[place]) == len(sequence)
        assert_close(last[place], state if len(sequence) else np.zeros(20), length=5, width=50, dtype=dtype)


# ---- the same net as tracing makes ------------------------------------------------------------------


def test_the_net_is_the_one_of_an_equal_step() -> None:
    W, R = numbers(2, 3, seed=0, dtype=F32), numbers(3, 3, seed=1, dtype=F32)
    op = sn.create_rnn_op()
    with op.stepnet():
        h = op.add_memory(shape=3)
        op.add_outputs(h)
        x = op.add_input(ragged(0, 2, F32))
        h.update(np.tanh(x @ W + h.pre_state() @ R))

    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ W + memory @ R)
        return h, h

    rnn = sn.RNN(step, memory=3, inputs=2)
    assert op.recurrence.net == rnn.net
    assert op.recurrence.plan == rnn.plan
    assert op.recurrence.explain("interpret") == rnn.explain("interpret")


def test_the_net_of_several_inputs_memories_and_outputs_is_the_one_of_an_equal_step() -> None:
    W, table = numbers(4, 3, seed=0, dtype=F32), numbers(5, 4, seed=1, dtype=F32)
    X = numbers(2, 3, 4, seed=2, dtype=F32)
    ids = np.array([[0, 4, 2], [1, 1, 3]])
    op = sn.create_rnn_op(output_num=3)
    with op.stepnet():
        count = op.add_memory(init=np.array([10, 20]))
        x = op.add_input(X)
        h = op.add_memory(shape=(2, 3))
        k = op.add_input(ids)
        product = sn.builder.matmul(W.T, x + table[:1] * 2 + (k % 2)[:, None].astype(F32))
        h.update(0.5 * h.pre_state() + product[:, None])
        count.update(count.pre_state() + k)
        op.add_outputs(h, product)
        op.add_outputs(count.pre_state())

    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        x, k = x["x"], x["x2"]
        product = (x + table[:1] * 2 + (k % 2)[:, None].astype(F32)) @ W
        h = 0.5 * memory["memory2"] + product[:, None]
        count = memory["memory"] + k
        return (h, product, memory["memory"]), {"memory": count, "memory2": h}

    memory = {"memory": sn.Spec((), np.int64), "memory2": (2, 3)}
    rnn = sn.RNN(step, memory=memory, inputs={"x": 4, "x2": sn.Spec((), np.int64)})
    assert op.recurrence.net == rnn.net

    first = {"memory": np.array([10, 20]), "memory2": np.zeros((2, 2, 3), F32)}
    right, _ = rnn({"x": X, "x2": ids}, first, engine="interpret")
    found = op(engine="interpret")
    assert isinstance(found, tuple)
    for one, other in zip(found, right, strict=True):
        assert one.tobytes() == other.tobytes()
    assert found[2].tolist() == [[10, 10, 14], [20, 21, 22]]


def test_the_net_knows_the_lines_of_the_block() -> None:
    op = sn.create_rnn_op()
    with op.stepnet():
        x = op.add_input(np.ones((1, 2, 3)))
        h = op.add_memory(shape=3)
        h.update(h.pre_state() + x)
        op.add_outputs(h)
    sources = [node.source for node in op.recurrence.program.traced.body.nodes if node.operation == "add"]
    assert len(sources) == 1
    assert sources[0].startswith(f"{__file__}:")
    assert sources[0].endswith(": h.update(h.pre_state() + x)")


# ---- what a block may say ---------------------------------------------------------------------------


SCALES = st.sampled_from([0.25, 0.5, 1.0])
SIZES = st.sampled_from([1, 2, 5])


@pytest.mark.long(examples=4)
@ENGINES
@settings(max_examples=12)
@given(data=st.data(), lengths=st.lists(st.sampled_from([0, 0, 1, 1, 2, 5]), max_size=5), scale=SCALES)
def test_blocks_are_what_a_loop_over_arrays_gives(
    data: st.DataObject, engine: str, lengths: list[int], scale: float
) -> None:
    """A memory with first values and one of zeros that read each other, two inputs, and three outputs."""
    inputs, others, hidden, wide = (data.draw(SIZES, label=name) for name in ("in", "other", "h", "c"))
    total, count = sum(lengths), len(lengths)
    offsets = (np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),)
    X, Z = (sn.Ragged(numbers(total, size, seed=seed), offsets) for seed, size in enumerate((inputs, others)))
    a = numbers(count, hidden, seed=2)
    W, U, V = (numbers(hidden, inputs, seed=3), numbers(hidden, wide, seed=4), numbers(wide, others, seed=5))
    swap = data.draw(st.booleans(), label="memories first")

    rnn = sn.create_rnn_op(output_num=3)
    with rnn.stepnet():
        h = rnn.add_memory(init=a) if swap else None
        x, z = rnn.add_input(X), rnn.add_input(Z)
        c = rnn.add_memory(shape=[wide])
        h = h or rnn.add_memory(init=a)
        inner = np.tanh(matmul(V, z) + scale * c.pre_state())
        rnn.add_outputs(h, inner)
        h.update(np.tanh(add_two(matmul(W, x), matmul(U, c.pre_state())) - scale * h.pre_state()))
        c.update(inner * h.pre_state()[:, :1])
        rnn.add_outputs(c.pre_state())
    found, last = rnn(engine=engine), rnn(output_all_steps=False, engine=engine)

    for place in range(count):
        hidden_now, wide_now = a[place], np.zeros(wide)
        right: Any = (np.zeros(hidden), np.zeros(wide), np.zeros(wide))
        for t in range(lengths[place]):
            before, wide_before = hidden_now, wide_now
            hidden_now = np.tanh(W @ X[place][t] + U @ wide_before - scale * before)
            inside = np.tanh(V @ Z[place][t] + scale * wide_before)
            wide_now = inside * before[0]
            right = (hidden_now, inside, wide_before)
            for output, one in zip(found, right, strict=True):
                assert_close(output[place][t], one, length=5, width=20)
        for output, one in zip(last, right, strict=True):
            assert_close(output[place], one, length=5, width=20)
    for output in found:
        assert output.lengths.tolist() == lengths


def test_a_memory_of_zeros_has_the_dtype_of_the_inputs_or_its_own(engine: str) -> None:
    for dtype, given_, expected in (
        (np.float64, None, np.float64),
        (F32, None, F32),
        (np.int64, None, F32),
        (F32, np.int32, np.int32),
        (F32, np.float64, np.float64),
    ):
        op = sn.create_rnn_op()
        with op.stepnet():
            x = op.add_input(np.arange(1, 7).reshape(2, 3).astype(dtype))
            h = op.add_memory(shape=(), dtype=given_)
            h.update(h.pre_state() + x.astype(expected))
            op.add_outputs(h)
        out = op(engine=engine)
        assert out.dtype == expected
        assert out.tolist() == [[1, 3, 6], [4, 9, 15]]


def test_a_memory_of_several_axes_and_an_output_that_is_a_parameter(engine: str) -> None:
    """shape=[2, 3] is a matrix in each row; a constant output is the same in every row."""
    op = sn.create_rnn_op(output_num=2)
    with op.stepnet():
        x = op.add_input(np.arange(12.0).reshape(2, 2, 3))
        h = op.add_memory(shape=[2, 3])
        h.update(h.pre_state() * 2 + x[:, None])
        op.add_outputs(h, np.array([7.0, 8.0]))
    out, constant = op(engine=engine)
    assert out[0].tolist() == [[[0, 1, 2]] * 2, [[3, 6, 9]] * 2]
    assert out[1].tolist() == [[[6, 7, 8]] * 2, [[21, 24, 27]] * 2]
    assert constant.tolist() == [[[7, 8]] * 2] * 2


def test_a_memory_may_be_left_as_it_is_or_made_a_constant(engine: str) -> None:
    op = sn.create_rnn_op(output_num=2)
    with op.stepnet():
        op.add_input(np.zeros((2, 3, 1)))
        kept, fixed = op.add_memory(init=np.array([[1.0], [2.0]])), op.add_memory(shape=1, dtype=F32)
        kept.update(kept.pre_state())
        fixed.update(np.array([5], F32))
        op.add_outputs(kept, fixed.pre_state())
    kept_out, fixed_out = op(engine=engine)
    assert kept_out.tolist() == [[[1]] * 3, [[2]] * 3]
    assert fixed_out.tolist() == [[[0], [5], [5]]] * 2


def test_it_may_run_again_and_over_other_sequences() -> None:
    X = ragged(0, 2)
    op = sn.create_rnn_op()
    with op.stepnet():
        x = op.add_input(X)
        h = op.add_memory(shape=2)
        h.update(x + h.pre_state())
        op.add_outputs(h)
    assert op(engine="interpret").values.tobytes() == op(engine="interpret").values.tobytes()
    outputs, final = op.recurrence({"x": X[2:]}, engine="interpret")
    assert outputs.values.tobytes() == op(engine="interpret")[2:].values.tobytes()
    rest: list[Any] = list(X[2:])
    assert_close(final["memory"], np.stack([sequence.sum(axis=0) for sequence in rest]), length=4)


# ---- matmul(W, x) -----------------------------------------------------------------------------------


PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrix and vector": ((2, 3), (3,)),
    "square": ((3, 3), (3,)),
    "vector and vector": ((3,), (3,)),
    "matrix and matrix": ((2, 3), (3, 4)),
    "vector and matrix": ((3,), (3, 3)),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("left", "right"), PRODUCTS.values(), ids=PRODUCTS.keys())
def test_matmul_is_the_product_for_each_row(
    engine: str, left: tuple[int, ...], right: tuple[int, ...], traced: bool
) -> None:
    """Of an array in a block, and of a parameter in a step function."""
    W, X = numbers(*left, seed=0), numbers(2, 3, *right, seed=1)
    rnn = sn.RNN(lambda x, h, p: (matmul(p if traced else W, x), h), W if traced else None, memory=1)
    out, _ = rnn(X, engine=engine)
    for row in range(2):
        for t in range(3):
            assert_close(out[row, t], W @ X[row, t], width=3)


def mistaken(wrong: Callable[[Any], Any]) -> str:
    with pytest.raises(StepError) as caught:
        sn.RNN(lambda x, h, p: (wrong(x), h), memory=1, inputs=4)
    message, line = str(caught.value).split("\n  at ")
    assert line.startswith(f"{__file__}:")
    return message


def test_matmul_of_what_it_is_not_for() -> None:
    W = np.ones((2, 3))
    assert mistaken(lambda x: matmul(W, x)) == (
        "matmul(W, x): W [2, 3] does not fit an x of [4] in each row: "
        "the last size of W must be the first of x"
    )
    assert "W [2, 3, 4] does not fit an x of [4]" in mistaken(lambda x: matmul(np.ones((2, 3, 4)), x))
    assert "W [] does not fit an x of [4]" in mistaken(lambda x: matmul(2.0, x))
    assert "does not fit an x of [] in each row" in mistaken(lambda x: matmul(W, x[:, 0]))
    assert mistaken(lambda x: matmul(W, W.T)).startswith("matmul(W, x) is for an x that each row has one of")
    assert mistaken(lambda x: matmul(x, x)).startswith("matmul(W, x) has the parameter on its left")


# ---- mistakes, in the user's words ------------------------------------------------------------------


X = np.ones((2, 3, 4), F32)
TWO_LEVELS = sn.Ragged(np.ones((3, 4), F32), (np.array([0, 1, 2]), np.array([0, 2, 3])))


def block(
    op: RNNOp, wrong: Callable[[RNNOp, Any, Memory], Any] = lambda op, x, h: None
) -> tuple[Any, Memory]:
    """A block that is right, but for what `wrong` does in it before the memory is updated."""
    with op.stepnet():
        x = op.add_input(X)
        h = op.add_memory(init=np.ones((2, 4), F32))
        wrong(op, x, h)
        h.update(x + h.pre_state())
        op.add_outputs(h)
    return x, h


IN_BLOCK: dict[str, tuple[str, Callable[[RNNOp, Any, Memory], Any]]] = {
    "updated twice": (
        r"`memory` is updated twice, first\n  at .*test_builder.py:\d+: .*\nand again\n  at .*h.update\(x \+",
        lambda op, x, h: h.update(x),
    ),
    "never updated": (
        r"`memory2` is never updated: h.update\(new\); it is added\n  at .*lambda op, x, h: op.add_memory",
        lambda op, x, h: op.add_memory(shape=4),
    ),
    "another shape": (
        r"`memory` is f32\[4\] and is updated with f32\[2\]; .* dtype it was added with\n  at .*lambda",
        lambda op, x, h: h.update(x[:, :2]),
    ),
    "another dtype": (
        r"`memory` is f32\[4\] and is updated with f64\[4\]; .* \(cast it with .astype, or add the",
        lambda op, x, h: h.update(x.astype(np.float64)),
    ),
    "rows in the shape": (
        r"`memory2` is f32\[2, 4\] and is updated with f32\[4\]; .* \(shape= is the features of one row",
        lambda op, x, h: op.add_memory(shape=[2, 4]).update(x),
    ),
    "a dtype that is none": (
        "dtype 'fp32' is none of float32, float64, int32, int64, bool",
        lambda op, x, h: h.update(x.astype("fp32")),
    ),
    "a text for an update": (
        "the update of `memory` is a str, not a value of the step",
        lambda op, x, h: h.update("text"),
    ),
    "a memory as a value": (
        r"`memory` is a memory, not a value; `pre_state\(\)` is its value before .*\n  at .*np.tanh\(h\)",
        lambda op, x, h: np.tanh(h),  # pyright: ignore[reportArgumentType, reportCallIssue]
    ),
    "a memory beside a value": ("`memory` is a memory, not a value", lambda op, x, h: x + h),
    "too many outputs": (
        "this makes 2 outputs; the rnn was made with output_num=1\n  at .*add_outputs",
        lambda op, x, h: op.add_outputs(h, x),
    ),
    "neither first values nor a shape": (
        "a memory is added with init=, an array of first values, or with shape=, for zeros",
        lambda op, x, h: op.add_memory(),
    ),
    "both first values and a shape": (
        "a memory is added with init=, an array of first values, or with shape=, for zeros",
        lambda op, x, h: op.add_memory(np.ones((2, 4), F32), shape=4),
    ),
    "a dtype of first values": (
        "dtype= goes with shape=; a memory with init= has the dtype of that array",
        lambda op, x, h: op.add_memory(np.ones((2, 4), F32), dtype=F32),
    ),
    "lists of different lengths for an update": (
        "the update of `memory` is a list that is not an array: setting an array element with a sequence",
        lambda op, x, h: h.update([[1], [1, 2]]),
    ),
    "lists of different lengths beside a value": (
        "a constant is a list that is not an array: setting an array element with a sequence",
        lambda op, x, h: np.add(x, [[1], [1, 2]]),
    ),
    "lists of different lengths for first values": (
        "init of `memory2` is a list that is not an array: setting an array element with a sequence",
        lambda op, x, h: op.add_memory(init=[[1], [1, 2]]),
    ),
    "a memory as an input": ("`memory` is a memory, not a value", lambda op, x, h: op.add_input(h)),
    "its own value as an input": (
        "an input is a value of a block, and the block was given an array before: its inputs, first values "
        "and statics are all arrays, or all values of the block around it",
        lambda op, x, h: op.add_input(x),
    ),
    "a sequence for each static": (
        "`static` is a Ragged; here it is an array, one entry for each sequence",
        lambda op, x, h: op.add_static(sn.Ragged.from_list(list(X))),
    ),
    "opened in itself": ("this rnn has its block already", lambda op, x, h: op.stepnet()),
    "called in its block": ("the rnn is called in its own block; call it after", lambda op, x, h: op()),
}


@pytest.mark.parametrize(("message", "wrong"), IN_BLOCK.values(), ids=IN_BLOCK.keys())
def test_a_mistake_in_a_block(message: str, wrong: Callable[[RNNOp, Any, Memory], Any]) -> None:
    with pytest.raises(StepError, match=f"^{message}"):
        block(sn.create_rnn_op(), wrong)


ARRAYS: dict[str, tuple[str, Callable[[RNNOp, Any, Memory], Any]]] = {
    "first values of other rows": (
        r"init of `memory2` is \[3, 4\]; its first axis should be the 2 sequences of the inputs",
        lambda op, x, h: op.add_memory(init=np.ones((3, 4), F32)),
    ),
    "first values that are one number": (
        r"init of `memory2` is \[\]; its first axis should be the 2 sequences",
        lambda op, x, h: op.add_memory(init=0.0),
    ),
    "first values of a dtype": (
        "init of `memory2` has dtype complex64; use one of float32",
        lambda op, x, h: op.add_memory(init=np.ones((2, 4), np.complex64)),
    ),
    "a shape that is none": (
        "a feature shape is made of whole numbers, not 3.5",
        lambda op, x, h: op.add_memory(shape=3.5),
    ),
    "an input of other lengths": (
        r"inputs `x` and `x2` have different batch and time: \(2, 3\) and \(2, 2\)",
        lambda op, x, h: op.add_input(X[:, :2]),
    ),
    "a Ragged beside an array": (
        "input x2 is a Ragged among arrays",
        lambda op, x, h: op.add_input(sn.Ragged.from_list(list(X))),
    ),
    "a list of inputs": (
        r"add_input takes one Ragged or array \[batch, time, features...\], not a list; add several",
        lambda op, x, h: op.add_input([X, X]),
    ),
    "an outer level": (
        "add_input got level=1 of sequences of one level; a block runs over the outermost, level=0: levels",
        lambda op, x, h: op.add_input(X, level=1),
    ),
    "two levels": (
        "add_input got level=0 of sequences of 2 levels; a block runs over the outermost, level=1: levels",
        lambda op, x, h: op.add_input(TWO_LEVELS),
    ),
    "an array of one axis": (
        r"sequences are a Ragged or an array \[batch, time, features\]; this one is \(4,\)",
        lambda op, x, h: op.add_input(X[0, 0]),
    ),
    "no dtype": (
        "a spec has dtype 'fp32'; use one of float32, float64, int32, int64, bool",
        lambda op, x, h: op.add_memory(shape=4, dtype="fp32"),
    ),
}


@pytest.mark.parametrize(("message", "wrong"), ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_that_do_not_fit(message: str, wrong: Callable[[RNNOp, Any, Memory], Any]) -> None:
    with pytest.raises(InputError, match=f"^{message}") as caught:
        block(sn.create_rnn_op(), wrong)
    assert "test_builder.py" in str(caught.value).splitlines()[-1]
    assert ": lambda op, x, h: " in str(caught.value).splitlines()[-1]


def test_first_values_of_other_rows_than_a_later_input() -> None:
    def body(op: RNNOp) -> None:
        op.add_memory(init=np.ones((3, 4), F32))
        op.add_input(X)

    with pytest.raises(InputError, match=r"init of `memory` is \[3, 4\]; its first axis should be the 2 seq"):
        in_block(sn.create_rnn_op(), body)


def in_block(op: RNNOp, body: Callable[[RNNOp], Any]) -> None:
    with op.stepnet():
        body(op)


OUTSIDE: dict[str, Callable[[RNNOp], Any]] = {
    "add_input": lambda op: op.add_input(X),
    "add_memory": lambda op: op.add_memory(shape=4),
    "add_outputs": lambda op: op.add_outputs(X),
    "add_static": lambda op: op.add_static(X[0]),
    "index": lambda op: op.index(),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_adding_outside_the_block(name: str) -> None:
    op = sn.create_rnn_op()
    op.stepnet()
    with pytest.raises(StepError, match=f"{name} before the block has begun; write it in `with rnn.stepnet"):
        OUTSIDE[name](op)
    block(op)
    with pytest.raises(StepError, match=f"{name} after the block has ended; write it in `with rnn.stepnet"):
        OUTSIDE[name](op)
    assert op(engine="interpret").tolist() == [[[2] * 4, [3] * 4, [4] * 4]] * 2


USES: dict[str, tuple[str, Callable[[Any, Memory], Any]]] = {
    "the memory before": (
        r"pre_state\(\) of `memory` after the block has ended",
        lambda x, h: h.pre_state(),
    ),
    "an update": (r"update\(\) of `memory` after the block has ended", lambda x, h: h.update(x)),
    "an input": ("a value of a block is used after the block has ended; make it an", lambda x, h: x + 1),
    "an input in a product": ("a value of a block is used after", lambda x, h: matmul(np.ones((1, 4)), x)),
    "the memory as a value": ("`memory` is a memory, not a value", lambda x, h: np.asarray(h)),
}


@pytest.mark.parametrize(("message", "use"), USES.values(), ids=USES.keys())
def test_using_a_memory_or_an_input_after_its_block(message: str, use: Callable[[Any, Memory], Any]) -> None:
    x, h = block(sn.create_rnn_op())
    with pytest.raises(StepError, match=f"^{message}") as caught:
        use(x, h)
    assert "lambda x, h: " in str(caught.value).splitlines()[-1]


def test_using_a_value_in_another_block() -> None:
    x, h = block(sn.create_rnn_op())
    with pytest.raises(StepError, match="values of two different steps meet"):
        block(sn.create_rnn_op(), lambda op, y, g: x + y)
    with pytest.raises(StepError, match=r"pre_state\(\) of `memory` after the block has ended"):
        block(sn.create_rnn_op(), lambda op, y, g: h.pre_state() + y)
    with pytest.raises(StepError, match="the update of `memory` belongs to another step"):
        block(sn.create_rnn_op(), lambda op, y, g: g.update(x))


def copying(op: RNNOp, *outputs: Any) -> Memory:
    h = op.add_memory(shape=4)
    h.update(op.add_input(X))
    op.add_outputs(*outputs)
    return h


ENDS: dict[str, tuple[str, Callable[[RNNOp], Any]]] = {
    "nothing": (r"the block has no input: x = rnn.add_input\(X\)", lambda op: None),
    "no memory": (
        r"the block has no memory: h = rnn.add_memory\(init=a\), or shape=\[...\] for zeros",
        lambda op: op.add_input(X),
    ),
    "no outputs": ("the block has no outputs, and output_num=2: rnn.add_outputs", copying),
    "too few outputs": (
        "the block has 1 outputs, and output_num=2: rnn.add_outputs",
        lambda op: op.add_outputs(copying(op)),
    ),
}


@pytest.mark.parametrize(("message", "body"), ENDS.values(), ids=ENDS.keys())
def test_what_is_missing_at_the_end_of_the_block(message: str, body: Callable[[RNNOp], Any]) -> None:
    with pytest.raises(StepError, match=f"^{message}") as caught:
        in_block(sn.create_rnn_op(output_num=2), body)
    assert str(caught.value).endswith(": with op.stepnet():")


def test_an_output_of_another_block() -> None:
    x, h = block(sn.create_rnn_op())
    belongs = "belongs to another step"
    of_another = r"is a memory of another rnn; `pre_state\(\)` is its value before the step"
    for output, message in ((x, belongs), (h, of_another)):
        with pytest.raises(StepError, match=f"^output 0 {message}\n.*op.add_outputs"):
            in_block(sn.create_rnn_op(), lambda op, output=output: copying(op, output))
    with pytest.raises(StepError, match=r"output 1 is a str, not a value of the step\n.*op.add_outputs"):
        in_block(sn.create_rnn_op(2), lambda op: copying(op, np.ones(1), "text"))


def test_one_block_to_an_rnn() -> None:
    op = sn.create_rnn_op()
    with pytest.raises(StepError, match="the rnn has no step yet; write it in `with"):
        op()
    with pytest.raises(StepError, match="the rnn has no step yet"):
        _ = op.recurrence
    unused = op.stepnet()
    block(op)
    for again in (lambda: block(op), lambda: unused.__enter__()):
        with pytest.raises(StepError, match=r"this rnn has its block already; write another on another"):
            again()
    assert op(engine="interpret").shape == (2, 3, 4)
    with pytest.raises(InputError, match="no engine is called 'tpu'"):
        op(engine="tpu")


def test_a_block_that_failed() -> None:
    op = sn.create_rnn_op()
    with pytest.raises(ZeroDivisionError):
        block(op, lambda op, x, h: 1 / 0)
    for use in (op, lambda: op.recurrence):
        with pytest.raises(StepError, match="the block of this rnn ended with an error; mend it, on another"):
            use()
    with pytest.raises(StepError, match="this rnn has its block already; write"):
        block(op)


@pytest.mark.parametrize("wrong", [0, -1, 1.0, "1", None])
def test_a_number_of_outputs_that_is_none(wrong: Any) -> None:
    with pytest.raises(
        InputError, match=f"output_num is how many outputs there are, 1 or more, not {wrong!r}"
    ):
        sn.create_rnn_op(wrong)


# ---- foreach ----------------------------------------------------------------------------------------


def test_foreach_is_the_loop(engine: str) -> None:
    """MXNet's own words: a list of inputs and a list of states, sliced along time."""
    W, R = numbers(2, 3, seed=0), numbers(3, 3, seed=1)
    left, right = ragged(2, 2), ragged(20, 3)
    first = [numbers(4, 3, seed=3), np.array([0, 10, 20, 30])]

    def body(data: Any, states: Any) -> Any:
        h, count = states
        h = np.tanh(data[0] @ W + h @ R) * data[1]
        return [h, count], [h, count + 1]

    outputs, states = sn.foreach(body, [left, right], first, engine=engine)
    assert isinstance(outputs, list)
    assert isinstance(states, list)
    for place, length in enumerate(LENGTHS):
        h, count = first[0][place], first[1][place]
        for t in range(length):
            (h, was), (_, count) = body([left[place][t], right[place][t]], [h, count])
            assert_close(outputs[0][place][t], h, length=4, width=5)
            assert outputs[1][place][t] == was
        assert_close(states[0][place], h, length=4, width=5)
        assert states[1][place] == count == first[1][place] + length
    assert outputs[0].lengths.tolist() == list(LENGTHS)


def test_foreach_over_an_array_and_a_state_of_its_own_structure(engine: str) -> None:
    """Batch, time, features: not time first, as MXNet has it."""
    data = np.arange(12.0).reshape(2, 3, 2)
    state = {"sum": np.zeros((2, 2)), "last": (np.full((2, 2), 7.0),)}
    out, final = sn.foreach(
        lambda x, s: (s["last"][0], {"sum": s["sum"] + x, "last": (x,)}), data, state, engine=engine
    )
    assert out.tolist() == np.concatenate([np.full((2, 1, 2), 7), data[:, :-1]], axis=1).tolist()
    assert final["sum"].tolist() == data.sum(axis=1).tolist()
    assert final["last"][0].tolist() == data[:, -1].tolist()


def test_what_foreach_is_not_given() -> None:
    with pytest.raises(InputError, match=r"body is a function body\(x, state\), not a int"):
        sn.foreach(3, X, np.ones((2, 4), F32))  # pyright: ignore[reportArgumentType]
    for nothing in (None, [], {"h": None}):
        with pytest.raises(InputError, match="a loop carries a state from step to step; give its arrays"):
            sn.foreach(lambda x, s: (x, s), X, nothing)
    with pytest.raises(InputError, match=r"the initial memory `s.0` is \[3, 4\]; it should be \[2, 4\]"):
        sn.foreach(lambda x, s: (x, s), X, [np.ones((3, 4), F32)])
    with pytest.raises(InputError, match="no engine is called 'tpu'"):
        sn.foreach(lambda x, s: (x, s), X, np.ones((2, 4), F32), engine="tpu")
    with pytest.raises(StepError, match=r"enters the step as \(array\) and leaves as array"):
        sn.foreach(lambda x, s: (x, s[0]), X, [np.ones((2, 4), F32)])
