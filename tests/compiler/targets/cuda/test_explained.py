"""The text of `explain` on kernels of every kind: schedule, registers, shared memory, time and its bound."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constants import Constants

import stepnet as sn
from bench.gpu.cells import recurrence
from stepnet.compiler.targets.cuda import ptxas

OTHERS = "the loop|reads of weights|products|elementwise|meetings of blocks"
BY = "by ptxas" if ptxas() else "in kernels of this kind; those of this one are known where NVIDIA's ptxas is"


def normalised(width: int) -> sn.RNN:
    """A step that takes a maximum over its units, which tensor cores do not."""

    def step(x: Any, h: Any, p: Any) -> Any:
        return h, np.tanh(x + h @ p) - np.max(h, axis=-1, keepdims=True)

    return sn.RNN(step, np.zeros((width, width), "f4"), memory=width, inputs=width)


def apart(dtype: str) -> sn.RNN:
    """A step whose units need nothing of each other."""

    def step(x: Any, h: Any, p: Any) -> Any:
        h = p * h + x
        return h, h

    spec = sn.Spec(1024, dtype)
    return sn.RNN(step, np.ones(1024, dtype), memory=spec, inputs=spec)


def of_heads() -> sn.RNN:
    """A step of heads, whose matrices are multiplied by others, so that no chunks of steps run it."""

    def step(x: Any, s: Any, p: Any) -> Any:
        s = np.tanh(s + x[..., None])
        return s.sum(axis=-1), s @ (s * p[:, None, None])

    return sn.RNN(step, np.ones(4, "f4"), memory=(4, 48, 48), inputs=(4, 48))


KINDS: dict[str, tuple[Callable[[], sn.RNN], str, str, str]] = {
    "plain units": (lambda: recurrence("gru", 32), "plain1-", "products|exchange|elementwise", "estimated"),
    "groups on tensor cores": (lambda: recurrence("gru", 256), "tagged16-", "exchange", "estimated"),
    "a block": (lambda: recurrence("gru", 16, "float64"), "not on tensor cores", "the loop", BY),
    "groups of blocks": (lambda: normalised(256), "products alone on tensor cores", OTHERS, BY),
    "a block for some heads": (of_heads, "one block", "the loop", BY),
    "units": (lambda: apart("float64"), "units are alone", "main memory", "estimated"),
    "chunks of steps": (
        lambda: recurrence("matrix_memory", 64),
        "64 steps at a time",
        "products",
        "estimated",
    ),
    "steps one by one": (lambda: recurrence("gru", 512, "float64"), "step by step", "launches", BY),
}
"""Kinds of schedules: a model, what its choice says, what bounds it, and whose registers are given."""


def rows_of(rnn: sn.RNN, rows: int = 16) -> dict[str, str]:
    """The rows of the text on the kernels of a model, by their names."""
    text = rnn.explain(engine="cuda", rows=rows, steps=100).split("kernels, for")[1].split("\n\n")[0]
    text = re.sub(r"\n {14}", " ", text)
    return dict(re.findall(r"^  (\w[\w ]*?)  +(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_schedule_says_what_it_takes_and_what_bounds_it(kind: str) -> None:
    make, choice, bound, source = KINDS[kind]
    found = rows_of(make())
    assert choice in found["chosen"]
    assert re.search(rf"[\d.]+ us for a step, most of it ({bound})", found["chosen"]), found["chosen"]
    assert re.fullmatch(r"[\d,]+ of 232,448 B of a block", found["shared"])
    assert re.fullmatch(r"[\d,]+ us predicted for 100 steps", found["time"])
    registers = re.match(r"(?:about )?(\d+)(?: to \d+)? of (\d+) of a thread", found["registers"])
    assert registers is not None, found["registers"]
    least, most = (48, 231) if source == BY else (16, 255)  # as the text says where ptxas is not installed
    assert least <= int(registers[1]) <= most
    assert int(registers[1]) <= int(registers[2]) <= 255
    assert source in found["registers"]


WIDTH, STEPS, FLOPS, BYTES = 256, 1600, 55e6, 2.6e6
"""The units and steps of a call, and the operations of a product and bytes of memory in a microsecond."""


def projected(inputs: int, outputs: int) -> sn.RNN:
    """A simple recurrence between two products of all steps, the second one of normed values."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ p["W"] + h @ p["R"])
        return np.exp(h - h.max(axis=-1, keepdims=True)) @ p["V"], h

    shapes = {"W": (inputs, WIDTH), "R": (WIDTH, WIDTH), "V": (WIDTH, outputs)}
    params = {name: np.zeros(shape, "f4") for name, shape in shapes.items()}
    return sn.RNN(step, params, memory=WIDTH, inputs=inputs)


@pytest.mark.parametrize(("inputs", "outputs", "bounds"), [(512, 1000, "products"), (17, 17, "main memory")])
def test_stages_around_a_loop_have_a_time(inputs: int, outputs: int, bounds: str) -> None:
    """Products take their operations or, with few columns, their bytes; a kernel reads and writes units."""
    found = rows_of(projected(inputs, outputs))
    moved = (4 * STEPS * (columns + WIDTH) + 4 * columns * WIDTH for columns in (inputs, outputs))
    both = zip((inputs, outputs), moved, strict=True)
    ahead, behind = (max(2 * STEPS * WIDTH * n / FLOPS, bytes_ / BYTES) for n, bytes_ in both)
    normed = 2 * 4 * STEPS * WIDTH / BYTES
    assert found["before"] == f"a product; {ahead:.1f} us predicted, most of it {bounds}"
    wanted = f"a kernel for 1 value, a product; {normed + behind:.1f} us predicted, most of it {bounds}"
    assert found["after"] == wanted


@pytest.fixture
def no_ptxas(constants: Constants, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """NVIDIA's assembler is neither in a package nor on the path."""
    constants("stepnet.compiler.targets.cuda.assembler", PACKAGE="no_such_package")
    monkeypatch.setenv("PATH", "")
    ptxas.cache_clear()
    yield
    ptxas.cache_clear()


@pytest.mark.usefixtures("no_ptxas")
def test_without_an_assembler_it_says_which_one_to_install() -> None:
    said = rows_of(recurrence("gru", 16, "float64"))["registers"]
    assert said == (
        "48 to 231 of 255 of a thread in kernels of this kind; those of this one are known where NVIDIA's "
        "ptxas is: pip install nvidia-cuda-nvcc"
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_units_take_the_time_of_their_bytes(dtype: str) -> None:
    """Inputs and outputs of 2048 sequences, at 2.6 TB/s."""
    (said,) = re.findall(
        r"([\d.]+) us for a step, most of it main memory", rows_of(apart(dtype), 2048)["chosen"]
    )
    assert float(said) == pytest.approx(2048 * 1024 * 2 * np.dtype(dtype).itemsize / 2.6e6, abs=0.01)


@pytest.mark.usefixtures("no_ptxas")
@pytest.mark.skipif(sys.platform == "win32", reason="a script for a shell")
def test_an_assembler_that_refuses_a_kernel_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "ptxas"
    old.write_text("#!/bin/sh\necho 'ptxas fatal: unsupported version' >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    ptxas.cache_clear()
    said = rows_of(recurrence("gru", 16, "float64"))["registers"]
    assert re.fullmatch(
        r"not known: ptxas refuses the kernel 'loop .*': ptxas fatal: unsupported version", said
    )
