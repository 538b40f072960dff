"""RWKV-6 and HGRN-2 in chunks of steps, and their gradients, beside loops in NumPy; in emulation."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from tests.compiler.targets.cuda.matrix_steps import MatrixStep

Array = np.ndarray
LENGTHS = 37, 0, 1, 20
OFFSETS = np.cumsum([0, *LENGTHS])
KEYS = {**dict.fromkeys("rk", (2, 16)), "v": (2, 32), "w": (2, 16)}
RWKV6 = MatrixStep(
    sn.cells.rwkv6, (2, 16, 32), KEYS, {"u": np.linspace(-1, 1, 32, dtype="f4").reshape(2, 16)}, decays="w"
)
HGRN2 = MatrixStep(sn.cells.hgrn2, (2, 16, 32), {"q": (2, 16), "v": (2, 32), "g": (2, 16)}, decays="g")
Numbers = dict[str, Array]


def rwkv6(x: Numbers, S: Array) -> Array:
    """The outputs of a sequence: o = r (S + u k v), S = exp(w) S + k v."""
    outputs = np.zeros(x["v"].shape)
    for t in range(len(outputs)):
        new = x["k"][t][:, :, None] * x["v"][t][:, None]
        outputs[t] = np.einsum("hk,hkv->hv", x["r"][t], S + x["u"][:, :, None] * new)
        S = np.exp(x["w"][t])[:, :, None] * S + new
    return outputs


def hgrn2(x: Numbers, S: Array) -> Array:
    """The outputs of a sequence: S = f S + (1 - f) v, o = q S."""
    outputs = np.zeros(x["v"].shape)
    for t in range(len(outputs)):
        forget = np.exp(x["g"][t])[:, :, None]
        S = forget * S + (1 - forget) * x["v"][t][:, None]
        outputs[t] = np.einsum("hk,hkv->hv", x["q"][t], S)
    return outputs


CELLS: dict[str, tuple[MatrixStep, Callable[[Numbers, Array], Array]]] = {
    "rwkv6": (RWKV6, rwkv6),
    "hgrn2": (HGRN2, hgrn2),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_whose_keys_decay_are_loops_in_numpy(name: str, codes: list[Any]) -> None:
    """Outputs, and slopes of a weighted sum of them along random directions, by differences in float64."""
    step, loop = CELLS[name]
    x, initial, chance = step.sequences(LENGTHS), step.initial(len(LENGTHS)), np.random.default_rng(7)
    weights = chance.normal(size=x["v"].values.shape)
    given = {key: each.values.astype("f8") for key, each in x.items()}
    given |= {key: each.astype("f8") for key, each in (step.params or {}).items()}
    given["initial"] = initial.astype("f8")

    def outputs(values: Numbers) -> Array:
        """The outputs of all sequences."""
        made = list[Array]()
        for row, (first, stop) in enumerate(pairwise(OFFSETS)):
            own = {key: each if key == "u" else each[first:stop] for key, each in values.items()}
            made.append(loop(own, values["initial"][row]))
        return np.concatenate(made)

    (found, _), backward = sn.vjp(step.rnn())(x, initial=initial, engine="cuda-emulated")
    assert_close(found.values, outputs(given), max(LENGTHS), 16)
    gradients = backward(found.with_values(weights.astype("f4")), None)
    assert "gradients of a matrix" in [code.name for code in codes]
    slopes: dict[str, Any] = {key: each.values for key, each in gradients.inputs.items()}
    slopes |= gradients.params or {}
    slopes["initial"] = gradients.initial
    assert slopes.keys() == given.keys()
    for key, slope in slopes.items():
        away = chance.normal(size=given[key].shape) * 1e-4
        ends = [(weights * outputs({**given, key: given[key] + sign * away})).sum() for sign in (1, -1)]
        terms = np.abs(slope * away).sum()
        assert abs((slope * away).sum() - (ends[0] - ends[1]) / 2) < 2e-5 * terms, key


STEP = MatrixStep(sn.cells.gla, (2, 16, 16), {**dict.fromkeys("qkv", (2, 16)), "g": (2, 16)}, decays="g")


def test_gradients_of_stored_values_run_step_by_step(codes: list[Any]) -> None:
    """With `saved=`, beside the interpreter in float64 without it: within the digits of bfloat16."""
    x, found = STEP.sequences((5, 0, 12)), list[Any]()
    for engine, dtype, saved in (("interpret", "f8", None), ("cuda-emulated", "f4", "bfloat16")):
        own = {key: each.with_values(each.values.astype(dtype)) for key, each in x.items()}
        (outputs, _), backward = sn.vjp(STEP.rnn(), saved=saved)(own, engine=engine)
        found.append(backward(outputs.with_values(np.ones_like(outputs.values)), None).inputs)
    assert "gradients of a matrix" not in [code.name for code in codes]
    for key, right in found[0].items():
        away = np.abs(found[1][key].values - right.values).max() / np.abs(right.values).max()
        assert 1e-7 < away < 2e-2, key


def attending(x: Any, S: Any, p: Any) -> Any:
    """A step that writes a sum over its own sequence of values, each scaled by what is read."""
    seen = np.tanh((S * x["k"][:, :, None]).sum(1))
    value = sn.reduce(x["v"] * sn.expand(seen, x["v"]), "sum")
    S = S * np.exp(x["g"])[:, :, None] + x["k"][:, :, None] * value[:, None, :]
    return (S * x["q"][:, :, None]).sum(1), S


def test_matrices_of_steps_with_sequences_of_their_own(codes: list[Any]) -> None:
    """They run step by step, and so do their gradients, as the target says by name."""
    chance, offsets = np.random.default_rng(4), np.array([0, 3, 3, 8])
    inner = np.array([0, 2, 2, 3, 7, 8, 8, 9, 11])
    values = {name: chance.normal(size=(8, 16)) / 4 for name in "qkg"}
    values["g"] = -np.abs(values["g"])
    rnn, found = sn.RNN(attending, memory=(16, 16)), list[Any]()
    inside = chance.normal(size=(11, 16))
    for engine, dtype in (("interpret", "f8"), ("cuda-emulated", "f4")):
        x = {name: sn.Ragged(each.astype(dtype), (offsets,)) for name, each in values.items()}
        x["v"] = sn.Ragged(inside.astype(dtype), (offsets, inner))
        (outputs, final), backward = sn.vjp(rnn)(x, engine=engine)
        gradients = backward(outputs.with_values(np.ones_like(outputs.values)), np.ones_like(final)).inputs
        found.append([outputs.values, final, *(gradients[name].values for name in "qkgv")])
    assert "gradients of a matrix" not in [code.name for code in codes]
    for one, right in zip(found[1], found[0], strict=True):
        assert_close(one, right, 5, 256)
    said = " ".join(sn.vjp(rnn).explain(engine="cuda-emulated", rows=3, steps=5).split())
    assert "a step has sequences inside" in said
