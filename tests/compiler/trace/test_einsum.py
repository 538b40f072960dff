"""np.einsum of a step's values: of any letters what NumPy gives, in every engine; the same bits in any batch;
and what it becomes.
"""

from collections.abc import Callable
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepnet as sn
import stepnet.compiler.targets.cpu.engine
from stepnet.compiler.targets.cpu import Processor, available_processors
from stepnet.compiler.trace import trace_step

ROWS = 3
SIZES = dict(zip(ascii_lowercase, (ROWS, 2, 3, 1, 5, 4), strict=False))
FEATURES = "".join(SIZES)[1:]


@st.composite
def subscripts(draw: st.DrawFn) -> tuple[list[str], str]:
    """Operands' letters, the rows `a` first in at least one of them; and the output's."""
    terms = [draw(st.text(FEATURES, max_size=3)) for _ in range(draw(st.integers(1, 4)))]
    having = draw(st.sets(st.integers(0, len(terms) - 1), min_size=1))
    terms = ["a" * (place in having) + term for place, term in enumerate(terms)]
    letters = sorted(set("".join(terms)) - {"a"})
    output = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
    return terms, "a" + "".join(output)


def whole(letters: str, seed: int) -> Any:
    """Whole numbers: their sums and products are exact, so their bits do not depend on the order."""
    shape = [SIZES[letter] for letter in letters]
    return np.random.default_rng(seed).integers(-4, 5, shape).astype("f4")


@pytest.mark.long(examples=8)
@settings(max_examples=30, deadline=None)
@given(subscripts())
def test_any_letters_give_what_numpy_gives(drawn: tuple[list[str], str]) -> None:
    terms, output = drawn
    text = f"{','.join(terms)}->{output}"
    arrays = [whole(term, seed) for seed, term in enumerate(terms)]
    rows = {f"v{place}": one for place, one in enumerate(arrays) if "a" in terms[place]}
    params = {f"v{place}": one for place, one in enumerate(arrays) if "a" not in terms[place]}

    def step(x: Any, h: Any, p: Any) -> Any:
        given = x | p
        return np.einsum(text, *(given[f"v{place}"] for place in range(len(terms)))), h

    rnn = sn.RNN(step, params, memory={"none": sn.Spec((), "int64")})
    for engine in ("interpret", "llvm"):
        outputs, _ = rnn({name: one[:, None] for name, one in rows.items()}, engine=engine)
        np.testing.assert_array_equal(outputs[:, 0], np.einsum(text, *arrays), err_msg=text)


# ---- bits --------------------------------------------------------------------------------------------------

SHAPES = {"q": (2, 20), "k": (2, 20), "v": (2, 13), "S": (2, 20, 13)}
STEPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "fast weights": lambda x, S, p: 0.9 * S + np.einsum("bhk,bhn->bhkn", x["k"], x["v"]),
    "by a parameter": lambda x, S, p: 0.9 * S + np.einsum("bhk,hkj,bhn->bhjn", x["k"], p["P"], x["v"]),
}


def memories(name: str, engine: str, rows: int) -> tuple[Any, Any]:
    """The outputs and last memories of a step with a matrix as memory, for the first rows of some."""
    random = np.random.default_rng(1)
    inputs = {one: random.normal(size=(7, 6, *SHAPES[one])).astype("f4")[:rows] for one in "qkv"}
    params = {"P": random.normal(size=(2, 20, 20)).astype("f4") / 5}

    def step(x: Any, S: Any, p: Any) -> Any:
        S = STEPS[name](x, S, p)
        return np.einsum("bhk,bhkn->bhn", x["q"], S), S

    rnn = sn.RNN(step, params, memory=SHAPES["S"])
    return rnn(inputs, engine=engine)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("processor", available_processors(), ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_bits_do_not_depend_on_the_batch(
    name: str, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepnet.compiler.targets.cpu.engine, "host_processor", lambda: processor)
    wanted, got, one = memories(name, "interpret", 7), memories(name, "llvm", 7), memories(name, "llvm", 1)
    for right, left, alone in zip(wanted, got, one, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(left[:1], alone)


# ---- what it becomes ---------------------------------------------------------------------------------------


def operations(text: str, *shapes: tuple[int, ...]) -> list[str]:
    """The operations that letters become, of a value of some features and of parameters."""
    params = {str(place): np.ones(shape, "f4") for place, shape in enumerate(shapes[1:])}
    x = sn.Spec(shapes[0], np.dtype("f4"))
    net = trace_step(lambda x, h, p: (np.einsum(text, x, *p.values()), h), x, None, None, params).body
    return [node.operation for node in net.nodes]


@pytest.mark.parametrize(
    ("text", "shapes", "products"),
    [
        ("bk,kn->bn", [(3,), (3, 4)], 1),
        ("bhk,hkn->bhn", [(2, 3), (2, 3, 4)], 2),
        ("bhk,hkn->bn", [(2, 3), (2, 3, 4)], 1),
        ("bhk,ghkn->bghn", [(2, 3), (5, 2, 3, 4)], 2),
        ("bk,kj,jn->bn", [(3,), (3, 5), (5, 4)], 2),
        ("bhk,hkn->bhn", [(99, 3), (99, 3, 4)], 0),
        ("bhk,hk->bh", [(2, 3), (2, 3)], 0),
        ("bhk,kn->bhkn", [(2, 3), (3, 4)], 0),
    ],
)
def test_a_parameter_stays_on_the_way_of_products(text: str, shapes: Any, products: int) -> None:
    assert operations(text, *shapes).count("matmul") == products


def fast_weights(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
    memory = 0.9 * memory + np.einsum("bk,bn->bkn", x["k"], x["v"])
    return np.einsum("bk,bkn->bn", x["q"], memory), memory


def test_a_matrix_that_is_a_memory_is_written_and_read_in_the_loop() -> None:
    """Its outer product and what is read out of it would be larger outside, at every step."""
    inputs = dict.fromkeys("qkv", sn.Spec((40,), "f4"))
    plan = sn.RNN(fast_weights, memory=sn.Spec((40, 40), "f4"), inputs=inputs).plan
    assert (plan.before, plan.after) == ((), ())
    found = [node.operation for node in plan.body.nodes]
    assert found.count("multiply") == 3
    assert "sum" in found


@pytest.mark.parametrize(("units", "behind"), [(4, True), (12, False)])
def test_a_small_matrix_of_few_units_is_read_behind_the_loop(units: int, behind: bool) -> None:
    """From 8 units on it is read fiber by fiber."""
    inputs = {"q": sn.Spec((12,), "f4"), "k": sn.Spec((12,), "f4"), "v": sn.Spec((units,), "f4")}
    plan = sn.RNN(fast_weights, memory=sn.Spec((12, units), "f4"), inputs=inputs).plan
    assert bool(plan.after) == behind
