"""Options of the target `cuda`: names of engines, checks of arguments, and precision."""

from typing import Any, cast

import numpy as np
import pytest

import stepnet as sn
import stepnet.cuda
from bench.gpu.cells import recurrence
from stepnet.compiler.targets import checked_engine, engine_named
from stepnet.compiler.targets.cuda import CudaOptions
from stepnet.errors import ArgumentError, InputError
from tests.support.tolerance import assert_close

UNITS = 64


def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
    """A tanh step, which runs on tensor cores."""
    made = np.tanh(x @ params["W"] + h @ params["U"])
    return made, made


def made_rnn(dtype: str = "float32", units: int = UNITS) -> sn.RNN:
    """A recurrence of the step."""
    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(size=size, scale=0.2).astype(dtype)
        for name, size in (("W", (8, units)), ("U", (units, units)))
    }
    return sn.RNN(step, memory=units, params=params)


def inputs_of(dtype: str = "float32", rows: int = 3) -> np.ndarray:
    """Sequences of seven steps."""
    return np.random.default_rng(1).normal(size=(rows, 7, 8)).astype(dtype)


@pytest.mark.parametrize(
    ("name", "number", "options"),
    [
        ("cuda", 0, CudaOptions()),
        ("cuda:1", 1, CudaOptions()),
        ("cuda:tf32", 0, CudaOptions("tf32")),
        ("cuda:4:bfloat16", 4, CudaOptions("bfloat16")),
        ("cuda:2:batch-invariant", 2, CudaOptions("float32", True)),
        ("cuda:3:tf32:batch-invariant", 3, CudaOptions("tf32", True)),
    ],
)
def test_the_name_of_an_engine_has_its_options(name: str, number: int, options: CudaOptions) -> None:
    made: Any = engine_named(name)
    assert (made.name, made.options) == (name, options)
    assert checked_engine(name) == name
    assert stepnet.cuda.engine(number, options.precision, options.batch_invariant) == name


def test_an_emulated_engine_has_options() -> None:
    made: Any = engine_named("cuda-emulated:tf32:batch-invariant")
    plain: Any = engine_named("cuda-emulated")
    assert made.options == CudaOptions("tf32", True)
    assert made.device is plain.device


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda:fp8", r"'cuda:fp8': the options of cuda are tf32, bfloat16 and batch-invariant, written "),
        ("cuda:tf32:1", r"'cuda:tf32:1': the options of cuda are"),
        ("cuda:", r"'cuda:': the options of cuda are"),
        ("cuda:batch-invariant:tf32", r".*written cuda\[:number of a GPU\]\[:tf32 or bf"),
        (
            "cuda:bfloat16:tf32",
            r".*written cuda\[:number of a GPU\]\[:tf32 or bfloat16\]\[:batch-invariant\]",
        ),
        ("cuda-emulated:1", r"'cuda-emulated:1': the options of cuda-emulated are tf32, bfloat16 and"),
        ("llvm:tf32", "'llvm:tf32': llvm takes no options; cuda and cuda-emulated do"),
        ("vulkan:tf32", "'vulkan:tf32'; the engines are llvm,"),
    ],
)
def test_unknown_options_are_refused_with_the_known_ones(name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"no engine is called {message}"):
        made_rnn()(inputs_of(), engine=name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "fp8"}, "precision is 'float32', 'tf32' or 'bfloat16', not 'fp8'"),
        ({"device": -1}, "device is the number of a GPU, a whole number from 0 on, not -1"),
        ({"device": "cuda:1"}, "device is the number of a GPU, a whole number from 0 on, not 'cuda:1'"),
        ({"batch_invariant": 1}, "batch_invariant is True or False, not 1"),
    ],
)
def test_wrong_arguments_of_an_engine_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stepnet.cuda.engine(**arguments)


@pytest.mark.parametrize(("word", "least", "most"), [("tf32", 1e-4, 1e-2), ("bfloat16", 1e-3, 1e-1)])
def test_a_precision_rounds_products_of_the_loop(word: str, least: float, most: float) -> None:
    """Inputs that are rounded to 10 or to 7 bits change results by about a thousandth or more; float32 stays
    exact.
    """
    rnn, x = made_rnn(), inputs_of()
    expected = rnn(x, engine="interpret")[0]
    assert_close(rnn(x, engine="cuda-emulated")[0], expected)
    error = np.abs(rnn(x, engine=f"cuda-emulated:{word}")[0] - expected).max()
    assert least < error < most
    assert word in rnn.explain(f"cuda-emulated:{word}", rows=3, steps=7)


def test_float64_stays_float64_with_tf32() -> None:
    rnn, x = made_rnn("float64", 8), inputs_of("float64")
    exact, rounded = (rnn(x, engine=f"cuda-emulated{word}")[0] for word in ("", ":tf32"))
    np.testing.assert_array_equal(rounded, exact)


def test_loops_are_few_whatever_batches_come() -> None:
    """Numbers of sequences share loops; those are made for numbers of four binary digits and zeros."""
    rnn, x = made_rnn(units=8), inputs_of()
    engine: Any = engine_named("cuda-emulated")
    rnn(x)
    (plan,) = rnn.program.schedule_for("cuda-emulated").plans
    kernel = engine.compile_plan(plan)
    loops = [kernel.loop(rows) for rows in range(64, 129)]
    assert len(kernel.loops) == 9
    assert len({id(each.loop) for each in loops}) == len({each.loop.code.key for each in loops})


def test_ptx_has_the_kernels_of_a_capability_and_of_options() -> None:
    rnn, found = recurrence("simple_rnn", 256), list[str]()
    for capability, precision in (("9.0", "float32"), ("9.0", "tf32"), ("8.0", "float32")):
        texts = stepnet.cuda.ptx(rnn, rows=1, capability=capability, precision=cast("Any", precision))
        found.append(texts["part 0: loop"])
    whole, rounded, ampere = found
    assert whole.count("mma.sync") > 2 * rounded.count("mma.sync") > 0
    assert ".target sm_90a" in whole
    assert ".target sm_80" in ampere


def test_ptx_of_a_loop_whose_bits_do_not_depend_on_the_batch() -> None:
    """For many sequences another order of sums is faster, and not taken where bits must be the same."""
    rnn = recurrence("simple_rnn", 32)
    many, same = (
        stepnet.cuda.ptx(rnn, rows=20_000, batch_invariant=is_asked)["part 0: loop"]
        for is_asked in (False, True)
    )
    assert many != same
    with pytest.raises(InputError, match="precision is 'float32', 'tf32' or 'bfloat16', not 'fp8'"):
        stepnet.cuda.ptx(rnn, precision=cast("Any", "fp8"))


@pytest.mark.parametrize(
    ("capability", "said"),
    [
        ("9", "two numbers with a point, such as \"9.0\" for an H100, not '9'"),
        ("x", "for an H100, not 'x'"),
        (9.0, "for an H100, not 9.0"),
        ("7.5", 'capability is "8.0" or higher: GPUs of 7.5 lack'),
        ("99.0", "capability is '99.0', and code is written for 8.0, 8.6, .*, 12.1; that for 12.1 runs"),
        ("8.1", "capability is '8.1', and code is written for 8.0, 8.6"),
    ],
)
def test_capabilities_that_no_code_is_written_for(capability: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        stepnet.cuda.ptx(recurrence("simple_rnn", 32), capability=capability)
