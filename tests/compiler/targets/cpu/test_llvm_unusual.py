"""Small unusual steps, on machine code as by the interpreter: what passes through, swaps, or never loops."""

from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import leaves

LENGTHS = (3, 0, 1, 5)
W = np.random.default_rng(0).uniform(-1, 1, (3, 3)).astype(np.float32)
H, HC = 3, {"h": 3, "c": 3}

# name: step, memory, statics
STEPS: dict[str, tuple[Any, Any, bool]] = {
    "memory as it came": (lambda x, h, p: (h, h), H, False),
    "input as output": (lambda x, h, p: (x, h), H, False),
    "input as memory": (lambda x, h, p: (h, x), H, False),
    "constant output": (lambda x, h, p: (np.full_like(h, 2), h + x), H, False),
    "parameter as memory": (lambda x, h, p: (h + x, np.zeros_like(h) + p["W"][0]), H, False),
    "memories exchanged": (lambda x, m, p: (m["h"] + x, {"h": m["c"] + x, "c": m["h"]}), HC, False),
    "one value twice": (lambda x, h, p: ((x + h, x + h, h), x + h), H, False),
    "no output": (lambda x, h, p: (None, np.tanh(x + h @ p["W"])), H, False),
    "nothing in the loop": (lambda x, h, p: (np.tanh(x @ p["W"]), h), H, False),
    "output before and after": (lambda x, h, p: (np.tanh((h + x) @ p["W"]) @ p["W"], h + x), H, False),
    "old memory as output": (lambda x, h, p: (h[:, ::-1], np.tanh(h + x)), H, False),
    "static alone": (lambda x, h, p, statics: (statics @ p["W"], h + statics), H, True),
    "static before the loop": (lambda x, h, p, statics: (h, np.tanh((x * statics) @ p["W"] + h)), H, True),
    "static after the loop": (lambda x, h, p, statics: ((h * statics) @ p["W"], np.tanh(h + x)), H, True),
    "static unread": (lambda x, h, p, statics: (h, h + x), H, True),
    "input unread": (lambda x, h, p: (h, np.tanh(h @ p["W"] + 1)), H, False),
    "index alone": (lambda x, h, p, index: (index, h + x), H, False),
    "booleans": (
        lambda x, m, p: (m["b"], {"b": (x > m["h"]) ^ m["b"], "h": x}),
        {"b": sn.Spec(3, "bool"), "h": 3},
        False,
    ),
    "table by a memory": (
        lambda x, m, p: (p["W"][m["k"]], {"k": (m["k"] + 1) % 3, "h": m["h"] + x}),
        {"k": sn.Spec((), "int64"), "h": 3},
        False,
    ),
    "sum of one": (lambda x, h, p: (x[:, :1].sum(-1), h + x[:, :1].max(-1, keepdims=True)), H, False),
    "joined and read": (lambda x, h, p: (np.concatenate([h, x[:, :1]], -1)[:, 1:] @ p["W"], h + x), H, False),
    "float64 in between": (lambda x, h, p: (x.astype(np.float64) @ p["W"], np.tanh(h + x)), H, False),
    "wide beside narrow": (
        lambda x, m, p: (m["d"], {"d": m["d"] + x.astype("f8").sum(-1), "h": np.tanh(m["h"] @ p["W"] + x)}),
        {"d": sn.Spec((), "float64"), "h": 3},
        False,
    ),
    "broadcast by features": (lambda x, h, p: ((x[:, :, None] * h[:, None, :]).sum(1), h + x), H, False),
    "views read after": (lambda x, h, p: (((x @ p["W"])[:, None] * h[..., None]).sum(-1), h), H, False),
    "turned": (lambda x, h, p: (np.swapaxes(x[:, :, None] * h[:, None, :], 1, 2), h + x), H, False),
}  # fmt: skip


@pytest.mark.long(each=True)
@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_unusual_steps(name: str, reverse: bool, last_only: bool) -> None:
    step, memory, has_statics = STEPS[name]
    random = np.random.default_rng(1)
    sequences = sn.Ragged.from_list([random.uniform(-1, 1, (n, 3)).astype(np.float32) for n in LENGTHS])
    statics = random.uniform(-1, 1, (len(LENGTHS), 3)).astype(np.float32) if has_statics else None
    rnn = sn.RNN(step, {"W": W}, memory=memory, reverse=reverse)
    found, expected = (
        rnn(sequences, statics=statics, last_only=last_only, engine=engine)
        for engine in ("llvm", "interpret")
    )
    for actual, right in zip(leaves(found), leaves(expected), strict=True):
        pair = (actual, right) if isinstance(actual, np.ndarray) else (actual.values, right.values)
        assert pair[0].dtype == pair[1].dtype
        assert_close(*pair, max(LENGTHS), 3)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [0, 0.0, 1.7, -1.7, 2.5, -0.3, 100, 101.0])
def test_powers_of_what_is_no_number(exponent: float, dtype: str) -> None:
    def step(x: Any, h: Any, p: None) -> tuple[Any, Any]:
        return x**exponent, h

    x = np.array([[[np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0]]], dtype)
    rnn = sn.RNN(step, memory=sn.Spec((), dtype))
    with np.errstate(all="ignore"):
        right = x**exponent
    for engine in ("llvm", "interpret"):
        np.testing.assert_array_equal(rnn(x, engine=engine)[0], right)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_of_a_table_at_integers_of_either_width(dtype: str):
    table = np.random.default_rng(2).normal(size=(5, 3)).astype("float32")
    rnn = sn.RNN(lambda x, h, p: (h, h + np.take(p, x, axis=0)), table, memory=3, inputs=sn.Spec((), dtype))
    tokens = np.array([[0, 4, -1, 2], [3, 3, -5, 1]], dtype)
    for engine in ("llvm", "interpret"):
        _, final = rnn(tokens, engine=engine)
        assert_close(final, table[tokens].astype(np.float64).sum(axis=1), length=4, width=1)
