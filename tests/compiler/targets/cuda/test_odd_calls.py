"""Calls on arrays that are seldom given so: not aligned, with gaps, without sequences or steps; and ends of
sequences where other kernels run the steps.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler import targets
from stepnet.compiler.net import CONST, ROWS, STEPS
from stepnet.compiler.targets.cuda import CudaEngine, DeviceArray, DeviceCode, EmulatedDevice, put
from stepnet.compiler.values import leaves, transform
from stepnet.model.gradients.differentiable import ModelNet
from stepnet.ragged import Positions
from tests.compiler.targets.cuda.loop_kinds import KINDS, draw

Array = np.ndarray
ENGINE = "cuda-emulated"
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NARROW = [(kind, dtype) for kind in KINDS if kind != "a block" for dtype in HALVES]
"""Kinds of loops that read inputs of 16 bits."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedDevice]:
    """The device of the engine "placed", which takes arrays that lie there."""
    device = EmulatedDevice(1)
    made = CudaEngine(device, name="placed", devices=("cpu",))
    monkeypatch.setitem(targets.ENGINES, "placed", lambda: made)  # type: ignore[arg-type]
    targets.engine.cache_clear()
    yield device
    targets.engine.cache_clear()


def moved(device: EmulatedDevice, array: Array, offset: int) -> DeviceArray:
    """An array on a device that begins some elements behind the begin of its memory."""
    lies = put(device, np.concatenate([np.zeros(offset, array.dtype), array.ravel()]))
    address = lies.address + offset * array.itemsize
    return DeviceArray(device, address, array.shape, array.dtype.name, lies)


def model_of(kind: str, dtype: Any = None, **options: Any) -> tuple[sn.RNN, Any]:
    """A recurrence, and its inputs, in another dtype if one is given."""
    step, params, memory, x, _ = KINDS[kind]
    if dtype is not None:
        x = transform(lambda array: array.astype(dtype), x)
    rnn = sn.RNN(step, params, memory=memory, **options)
    rnn(x, engine="interpret")  # so that its inputs are known
    return rnn, x


def on_host(values: Any) -> list[Array]:
    """Results as arrays of the host."""
    return [each.numpy() if isinstance(each, DeviceArray) else np.asarray(each) for each in leaves(values)]


def bits(values: Any) -> list[bytes]:
    """The bits of results."""
    return [each.tobytes() for each in on_host(values)]


def assert_like(found: Any, right: Any, terms: int) -> None:
    """Asserts that outputs, which may be ragged, and memories are those of the interpreter."""
    for ours, theirs in zip(leaves(found), leaves(right), strict=True):
        whole, other = (getattr(each, "values", each) for each in (ours, theirs))
        assert_close(np.asarray(whole), other, 9, terms)


def gradients(rnn: sn.RNN, device: EmulatedDevice, offset: int) -> list[Any]:
    """Outputs and gradients of a model for random operands, as modules of frameworks run it on a device."""
    model, where = ModelNet.of(rnn), Positions.padded(np.array([3, 2]), 3)
    counts = {CONST: (), ROWS: (2,), STEPS: (6,)}

    def operand(place: int, type_: Any) -> DeviceArray:
        """Random numbers of a type."""
        drawn = draw(*counts[type_.extent], *type_.shape, seed=place)
        return moved(device, drawn.astype(type_.dtype), offset)

    types = [rnn.net.type_of(number) for number in rnn.net.inputs]
    arrays: Any = [operand(*each) for each in enumerate(types)]
    passes = model.halves(tuple(range(len(arrays))), ("placed",))
    made: Any = passes.forward(arrays, where)
    seeds: Any = [moved(device, made[place].numpy(), offset) for place in model.floats]
    saved = [made[place] for place in passes.saved]
    return [*made, *passes.backward(arrays, seeds, saved, where)]


@pytest.mark.long(every=4)
@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize(("kind", "dtype"), [*((kind, "") for kind in KINDS), *NARROW])
def test_arrays_need_not_be_aligned(kind: str, dtype: str, offset: int, device: EmulatedDevice) -> None:
    """Inputs, memories, and cotangents begin at any of their elements. The emulation finds wide accesses that
    are not aligned; results have the bits of aligned arrays.
    """
    rnn, x = model_of(kind, HALVES.get(dtype))
    found = list[list[bytes]]()
    for ahead in (0, offset):
        given = transform(lambda array, ahead=ahead: moved(device, array, ahead), x)
        first, final = rnn(given, engine="placed")
        again = rnn(given, moved(device, final.numpy(), ahead), engine="placed")
        found.append(bits([first, final, again, gradients(rnn, device, ahead)]))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_the_host_may_have_gaps(kind: str) -> None:
    """Reversed, transposed and every other one, as NumPy gives views."""
    rnn, x = model_of(kind)
    right = bits(rnn(x, engine=ENGINE))

    def spread(array: Array) -> Array:
        """The same array with gaps between its elements, in another order."""
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype).swapaxes(0, 1)[:, ::-1]
        view = wide.swapaxes(0, 1)[..., ::2]
        view[...] = array
        return view

    views = transform(spread, x)
    assert not any(each.flags.c_contiguous for each in leaves(views))
    assert bits(rnn(views, engine=ENGINE)) == right


@pytest.mark.parametrize(("rows", "steps"), [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_without_sequences_or_steps(kind: str, rows: int, steps: int) -> None:
    """Their results and gradients are those of the interpreter, and calls that come again have them too."""
    rnn, x = model_of(kind)
    empty = transform(lambda array: np.zeros((rows, steps, *array.shape[2:]), array.dtype), x)
    found = list[list[Any]]()
    for engine in (ENGINE, ENGINE, "interpret"):
        outputs, backward = sn.vjp(rnn)(empty, engine=engine)
        gradients = backward(*(np.ones_like(each) for each in outputs))
        found.append(leaves([rnn(empty, engine=engine), outputs, gradients.inputs, gradients.params]))
    for ours in found[:2]:
        for one, other in zip(ours, found[2], strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


# ---- ends of sequences


def decayed(x: Any, s: Any, p: Any) -> Any:
    """A matrix that decays, beside what is left of what a sequence began with."""
    written = 0.9 * s["S"] + x["k"][..., None] * x["v"][..., None, :]
    return np.einsum("rhk,rhkv->rhv", x["q"], written), {"S": written, "left": s["left"] - x["uses"]}


def masked(x: Any, s: Any, p: Any) -> Any:
    """A matrix that decays, where steps do not stop it."""
    written = 0.9 * s + x["k"][..., None] * x["v"][..., None, :]
    s = np.where(x["keeps"][:, None, None, None], s, written)
    return np.einsum("rhk,rhkv->rhv", x["q"], s), s


def of_heads(rows: int, steps: int) -> dict[str, Array]:
    """Queries, keys and values of a head."""
    return {name: draw(rows, steps, 1, 16, seed=place) for place, name in enumerate("kqv")}


@pytest.mark.parametrize("reverse", [False, True])
def test_masks_keep_a_matrix_that_chunks_would_run(reverse: bool) -> None:
    rnn = sn.RNN(masked, memory=(1, 16, 16), reverse=reverse)
    x = {**of_heads(3, 9), "keeps": np.random.default_rng(5).random((3, 9)) < 0.4}
    found = list[list[Any]]()
    for engine in (ENGINE, "interpret"):
        outputs, backward = sn.vjp(rnn)(x, lengths=[9, 0, 5], engine=engine)
        gradients: Any = backward(*(np.ones_like(each) for each in outputs)).inputs
        found.append([*leaves(outputs), *(gradients[name] for name in "kqv")])
    for ours, theirs in zip(*found, strict=True):
        assert_close(np.asarray(ours), theirs, 9, 64)


@pytest.mark.parametrize("reverse", [False, True])
def test_flags_end_sequences_of_a_matrix_that_chunks_would_run(reverse: bool) -> None:
    memory = {"S": (1, 16, 16), "left": ()}
    rnn = sn.RNN(decayed, memory=memory, reverse=reverse, until=lambda y, s: s["left"] < 0)
    x = {**of_heads(4, 9), "uses": np.random.default_rng(5).random((4, 9)).astype("f4")}
    begin = {"S": draw(4, 1, 16, 16, seed=7), "left": np.array([1, 9, -1, 2], "f4")}
    found = [rnn(x, begin, lengths=[9, 9, 4, 0], engine=engine) for engine in (ENGINE, "interpret")]
    assert_like(found[0], found[1], 64)
    assert len(found[1][0].values) < 9 + 9 + 4


@pytest.mark.parametrize(("width", "group"), [(16, 1), (200, 4)])
def test_flags_end_sequences_that_take_turns(
    width: int, group: int, device: EmulatedDevice, codes: list[DeviceCode]
) -> None:
    """Of 40 sequences on a GPU that has room for one group of blocks at a time, which runs one turn after
    another: a sequence that has ended frees no lane, but the turn ends with its last one.
    """

    def step(x: Any, s: Any, p: Any) -> Any:
        h = np.tanh(x["x"] + s["h"] @ p)
        return h, {"h": h, "left": s["left"] - x["uses"]}

    device.facts = replace(device.facts, multiprocessors=2 * group)
    chance, lengths = np.random.default_rng(3), np.arange(40) % 7
    memory = {"h": width, "left": ()}
    rnn = sn.RNN(step, draw(width, width) / 4, memory=memory, until=lambda y, s: s["left"] < 0)
    x = {"x": draw(40, 6, width), "uses": chance.random((40, 6)).astype("f4")}
    begin = {"h": draw(40, width, seed=2), "left": 2 * chance.random(40).astype("f4")}
    found = [rnn(x, begin, lengths=lengths, engine=engine) for engine in ("placed", "interpret")]
    assert_like(found[0], found[1], 4 * width)
    (loop,) = {code.key: code for code in codes if code.name.startswith("loop")}.values()
    assert loop.group == group
