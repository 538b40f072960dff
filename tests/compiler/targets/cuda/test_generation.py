"""Symbols that are generated on the emulated device are those of machine code for the CPU, and launches are
counted: one for all symbols, one for some hundreds of drawn ones, or one for each step.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from constants import Constants

import stepnet as sn
from stepnet.compiler.targets.cuda import assembled, ptxas

Array = np.ndarray
SYMBOLS = 8
WIDTHS = {"blocks": 8, "groups": 16}
"""The units of models whose step runs in single blocks, and in groups of blocks."""
STARTS = [0, 3, 4, 1, 0, 7]
OPTIONS: dict[str, Any] = {"stop": 2, "max_steps": 20}


def drawn(scores: Array, random: Array) -> Array:
    """Draws a symbol as a sampler that is a function does: one of the two of the highest scores."""
    best = np.argsort(-scores, axis=-1, kind="stable")
    return np.where(random < 0.6, best[:, 0], best[:, 1])


SAMPLERS = {
    "highest": None,
    "all": sn.sampling(),
    "top_k": sn.sampling(0.8, top_k=3),
    "top_p": sn.sampling(1.5, top_p=0.8),
    "both": sn.sampling(1.2, top_k=5, top_p=0.9),
    "function": drawn,
}


@cache
def language(loop: str = "blocks") -> sn.RNN:
    """A language model: an embedding, a recurrence, and scores of the symbols."""
    random, width = np.random.default_rng(0), WIDTHS[loop]
    shapes = {"E": (SYMBOLS, 8), "W": (8, width), "R": (width, width), "V": (width, SYMBOLS)}
    scale = (8 / width) ** 0.5
    parameters = {name: scale * random.normal(size=shape).astype("f4") for name, shape in shapes.items()}

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"])
        return h @ p["V"], h

    return sn.RNN(step, parameters, memory=width, inputs=sn.Spec((), np.int64))


CASES = [
    ("highest", "groups"),
    ("both", "blocks"),
    ("function", "blocks"),
    *(pytest.param(name, "blocks", marks=pytest.mark.long) for name in ("highest", "all", "top_k", "top_p")),
]


@pytest.mark.parametrize(("name", "loop"), CASES)
def test_samplers(
    name: str,
    loop: str,
    done: list[str],
    shuffle_threads: Callable[[int], None],
    constants: Constants,
) -> None:
    options = {**OPTIONS, "sampler": SAMPLERS[name], "seed": 5}
    expected = sn.generate(language(loop), STARTS, engine="llvm", **options)
    if loop == "groups":
        constants("stepnet.compiler.targets.cuda.choice", FEW_WEIGHTS=0, BLOCK_BYTES=1.0)
        shuffle_threads(2)
    sn.generate(language(loop), STARTS, engine="cuda-emulated", **options)
    done.clear()
    found = sn.generate(language(loop), STARTS, engine="cuda-emulated", **options)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    loops = [each for each in done if each.startswith("loop")]
    if name == "function":
        assert len(loops) >= max(expected.lengths)
    else:
        assert len(loops) == 2, "one reads the given symbols, the other writes all others"
        assert ("groups" in loops[1]) == (loop == "groups")


@pytest.mark.parametrize("loop", ["blocks", "groups"])
def test_beam_search(
    loop: str, done: list[str], shuffle_threads: Callable[[int], None], constants: Constants
) -> None:
    options: dict[str, Any] = {**OPTIONS, "beams": 3, "length_penalty": 0.5}
    expected, others = sn.beam_search(language(loop), STARTS, engine="llvm", **options)
    if loop == "groups":
        constants("stepnet.compiler.targets.cuda.choice", FEW_WEIGHTS=0, BLOCK_BYTES=1.0)
        shuffle_threads(2)
    sn.beam_search(language(loop), STARTS, engine="cuda-emulated", **options)
    done.clear()
    found, logs = sn.beam_search(language(loop), STARTS, engine="cuda-emulated", **options)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_allclose(logs.values, others.values, rtol=1e-5)
    loops = [each for each in done if each.startswith("loop")]
    assert len(loops) == 2, "one reads the given symbols, the other continues the beams to their ends"
    assert ("groups" in loops[1]) == (loop == "groups")


def test_beam_search_step_by_step(done: list[str]) -> None:
    """With Python between two steps, where scores are a function."""
    options: dict[str, Any] = {**OPTIONS, "beams": 3, "scores": np.negative}
    (found, logs), (expected, others) = (
        sn.beam_search(language(), STARTS, engine=engine, **options) for engine in ("cuda-emulated", "llvm")
    )
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_allclose(logs.values, others.values, rtol=1e-5)
    assert max(map(len, expected.inner())) <= done.count("loop") <= OPTIONS["max_steps"] + 4


@pytest.mark.skipif(ptxas() is None, reason="ptxas, of NVIDIA's CUDA toolkit, is not installed")
@pytest.mark.parametrize(
    "generation",
    [partial(sn.generate, sampler=sn.sampling(top_k=3)), partial(sn.beam_search, beams=3)],
    ids=["generate", "beam_search"],
)
def test_the_assembler_takes_the_kernels(generation: Any, codes: list[Any]) -> None:
    generation(language(), STARTS, stop=2, max_steps=3, engine="cuda-emulated")
    *_, loop = (code for code in codes if code.name.startswith("loop"))
    report = assembled(loop, (9, 0))
    assert report.spilled == report.stack == 0
