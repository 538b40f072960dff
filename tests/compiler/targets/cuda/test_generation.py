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
WIDTHS = {"blocks": 8, "groups": 16, "tiles": 12}
"""The units of models whose step runs in single blocks, and in groups of blocks, whose products may be on
tensor cores.
"""
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


def prefer(loop: str, constants: Constants, shuffle_threads: Callable[[int], None]) -> None:
    """Makes the choice of a loop prefer a kind, whose threads run in another order."""
    if loop != "blocks":
        constants("stepnet.compiler.targets.cuda.loops.others", FEW_WEIGHTS=0, BLOCK_BYTES=1.0)
        constants("stepnet.compiler.targets.cuda.grid.sizes", LINK=10.0 if loop == "tiles" else 0.0)
        shuffle_threads(2)


CASES = [
    ("highest", "groups"),
    ("highest", "tiles"),
    ("both", "tiles"),
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
    prefer(loop, constants, shuffle_threads)
    sn.generate(language(loop), STARTS, engine="cuda-emulated", **options)
    done.clear()
    found = sn.generate(language(loop), STARTS, engine="cuda-emulated", **options)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    loops, said = [each for each in done if each.startswith("loop")], explained(language(loop), name)
    assert ("with Python between them: sampler= is a function" in said) == (name == "function")
    if name == "function":
        assert len(loops) >= max(expected.lengths)
    else:
        assert len(loops) == 2, "one reads the given symbols, the other writes all others"
        assert ("groups" in loops[1]) == (loop != "blocks") == (" blocks of" in said)
        assert ("products alone on tensor cores, float32" in said) == (loop == "tiles")
        assert "one call for all symbols" in said


def explained(rnn: Any, sampler: str = "highest", **options: Any) -> str:
    """The text of `explain` for a generation, without breaks of lines."""
    given = {"sampler": SAMPLERS[sampler], "rows": len(STARTS), "max_steps": OPTIONS["max_steps"], **options}
    return " ".join(rnn.explain("cuda-emulated", **given).split())


@pytest.mark.parametrize(
    ("loop", "beams"),
    [
        ("blocks", 3),
        ("groups", 3),
        ("tiles", 3),
        ("groups", 24),
        pytest.param("blocks", 33, marks=pytest.mark.long),
        pytest.param("tiles", 64, marks=pytest.mark.long),
    ],
)
def test_beam_search(
    loop: str, beams: int, done: list[str], shuffle_threads: Callable[[int], None], constants: Constants
) -> None:
    """Few beams, which are found one after another, and more, whose ranks are counted; then the blocks of a
    group divide what they count.
    """
    options: dict[str, Any] = {**OPTIONS, "beams": beams, "length_penalty": 0.5}
    starts = STARTS
    if beams > 3:
        starts, options["max_steps"] = STARTS[:2], 5
    expected, others = sn.beam_search(language(loop), starts, engine="llvm", **options)
    prefer(loop, constants, shuffle_threads)
    constants("stepnet.compiler.targets.cuda.grid.share", MANY=512)
    sn.beam_search(language(loop), starts, engine="cuda-emulated", **options)
    done.clear()
    found, logs = sn.beam_search(language(loop), starts, engine="cuda-emulated", **options)
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_allclose(logs.values, others.values, rtol=1e-5)
    loops = [each for each in done if each.startswith("loop")]
    assert len(loops) == 2, "one reads the given symbols, the other continues the beams to their ends"
    said = explained(language(loop), beams=beams)
    assert ("groups" in loops[1]) == (loop != "blocks") == (" blocks of" in said)
    assert ("products alone on tensor cores, float32" in said) == (loop == "tiles")
    assert f"the best {beams} of {8 * beams} continuations of a start" in said


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


def follows(outputs: int, statics: Any = None, **options: Any) -> sn.RNN:
    """A model whose outputs are sums of one-hot symbols, and of statics where it has any."""

    def step(x: Any, h: Any, p: Any) -> Any:
        return x @ p + h, h

    def with_statics(x: Any, h: Any, p: Any, statics: Any) -> Any:
        return x @ p + statics + h, h

    weights = np.ones((5, outputs), "float32")
    given = step if statics is None else with_statics
    return sn.RNN(given, weights, memory=outputs, inputs=5, statics=statics, **options)


ATTENDS = sn.RNN(
    lambda x, h, p, statics: (x + sn.reduce(statics * sn.expand(x, statics), "max"), h),
    memory=5,
    inputs=5,
    statics=sn.Spec(5, axis="keys"),
)
GRIDS = sn.RNN(lambda x, h, p: (x[:, :, None] * p, h), np.ones((1, 3), "f4"), memory=5, inputs=5)


def test_explain_of_a_generation_does_not_run_the_model() -> None:
    """It needs no GPU, and takes graphs, stacks and declared statics."""
    for rnn in (follows(5, statics=sn.Spec(5)), sn.Stack([follows(5), follows(5)])):
        said = " ".join(rnn.explain("cuda:tf32", rows=3, max_steps=70_000).split())
        assert (
            "generation, for 3 sequences of up to 70000 symbols symbols in the step, by the highest of 5"
            in said
        )
        assert "one call for 65,536 symbols" in said
        assert "launches one for all steps: blocks leave the loop" in said
    graph = sn.Graph(lambda x, params: follows(5)(x)[0] * params, np.float32(2), inputs=5)
    assert "one call for all symbols" in graph.explain("llvm", max_steps=9)


@pytest.mark.parametrize(
    ("rnn", "options", "said"),
    [
        (follows(5), {"feed": lambda symbols: symbols}, "feed= is a function"),  # type: ignore[reportUnknownLambdaType]
        (follows(5), {"scores": np.negative}, "scores= is a function"),
        (follows(6), {}, "there are scores of 6 symbols, and 5 can be fed"),
        (
            follows(5),
            {"beams": 65},
            "64 beams at most, with 4096 symbols in all, continue in machine code, not 65",
        ),
        (follows(300), {"sampler": sn.sampling(), "feed": np.ones((300, 5), "f4")}, "among 256 at most"),
        (ATTENDS, {}, "has statics that are sequences"),
    ],
)
def test_explain_says_why_python_runs_between_two_symbols(rnn: Any, options: Any, said: str) -> None:
    text = " ".join(rnn.explain("cuda-emulated", max_steps=9, **options).split())
    assert "one step for each symbol, as a stream of" in text
    assert said in text


@pytest.mark.parametrize(
    ("rnn", "options", "said"),
    [
        (follows(5), {"beams": 3}, "beams= is of a generation: give max_steps= too"),
        (follows(5), {"max_steps": 3, "steps": 4}, "leave out steps= and lengths="),
        (follows(5), {"max_steps": 3, "lengths": [4]}, "leave out steps= and lengths="),
        (follows(5), {"max_steps": 0}, "max_steps is the most symbols of a sequence, 1 or more, not 0"),
        (follows(5), {"max_steps": 3, "rows": 0}, "rows is the number of sequences that are generated"),
        (follows(5), {"max_steps": 3, "beams": 0}, "beams is how many sequences are kept, 1 or more, not 0"),
        (follows(5), {"max_steps": 3, "sampler": 3}, "sampler is a function"),
        (
            follows(5),
            {"max_steps": 3, "beams": 2, "sampler": sn.sampling()},
            "a beam search draws no symbols",
        ),
        (follows(5, until=lambda y, h: h[:, 0] > 1), {"max_steps": 3}, "make the recurrence without until="),
        (follows(5, reverse=True), {"max_steps": 3}, "begins at a sequence's last step"),
        (GRIDS, {"max_steps": 3}, r"scores are one number for each symbol, and the output is f32\[5, 3\]"),
    ],
)
def test_generations_that_cannot_be_explained(rnn: Any, options: Any, said: str) -> None:
    with pytest.raises(sn.StepnetError, match=said):
        rnn.explain("cuda-emulated", **options)
