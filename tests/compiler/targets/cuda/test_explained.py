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


def rows_of(rnn: sn.RNN, rows: int = 16, lengths: list[int] | None = None) -> dict[str, str]:
    """The rows of the text on the kernels of a model, by their names."""
    size: dict[str, Any] = {"rows": rows, "steps": 100} if lengths is None else {"lengths": lengths}
    text = rnn.explain(engine="cuda", **size).split("kernels, for")[1].split("\n\n")[0]
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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_schedule_has_a_time_for_lengths(kind: str) -> None:
    """Equal lengths take what so many steps do. If one is shorter they take about as much: chunks of 64 end
    with the second one, and a turn takes a few microseconds.
    """
    rnn = KINDS[kind][0]()
    usual, equal, shorter = (rows_of(rnn, lengths=each) for each in (None, [100] * 16, [100] * 15 + [60]))
    assert equal["time"] == usual["time"]
    assert equal["in all"] == usual["in all"]
    for row in ("time", "in all"):
        assert 0.9 < microseconds(shorter[row]) / microseconds(usual[row]) < 2


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


def gradient(rnn: sn.RNN, *sizes: int) -> Any:
    """The gradients of a recurrence, whose inputs a call made known."""
    rnn(np.ones((1, 2, *sizes), "f4"), engine="interpret")
    return sn.vjp(rnn)


def nested() -> sn.RNN:
    """A recurrence over texts, each of whose steps runs another one over its words, from its memory."""
    words = recurrence("gru", 8)

    def step(x: Any, h: Any, p: Any) -> Any:
        _, h = words(x, initial=np.tanh(h))
        return h, h

    rnn = sn.RNN(step, memory=8)
    rnn(sn.Ragged.from_list([[np.ones((2, 12), "f4")]]), engine="interpret")
    return rnn


def attending() -> Any:
    """Causal attention between products with all steps."""
    graph = sn.Graph(lambda x, p: sn.attention(x @ p, x, x, causal=True), np.ones((8, 8), "f4"))
    graph(np.ones((1, 2, 8), "f4"), engine="interpret")
    return graph


def two_directions() -> Any:
    """A simple recurrence of 256 units in both directions, which run at the same time."""

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x + h @ p)
        return h, h

    params = np.zeros((256, 256), "f4")
    made = [sn.RNN(step, params, memory=256, inputs=256, reverse=reverse) for reverse in (False, True)]
    return sn.Bidirectional(made[0], made[1])


def embedded() -> sn.RNN:
    """A recurrence on rows of a table, whose gradients are sums at indices."""
    params = {"table": np.ones((40, 8), "f4"), "R": np.ones((8, 8), "f4")}

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(p["table"][x] + h @ p["R"])
        return h, h

    rnn = sn.RNN(step, params, memory=8, inputs=sn.Spec((), "int64"))
    rnn(np.zeros((1, 2), "i8"), engine="interpret")
    return rnn


WHOLE: dict[str, Callable[[], Any]] = {
    "one plan": lambda: recurrence("gru", 64),
    "sums of gradients": lambda: gradient(recurrence("gru", 64), 12),
    "gradients in chunks": lambda: gradient(recurrence("matrix_memory", 64), 12),
    "two directions": two_directions,
    "steps part by part": nested,
    "pairs of steps": attending,
    "embedding": lambda: sn.vjp(embedded()),
}


def sections_of(model: Any, **size: Any) -> list[dict[str, str]]:
    """The rows of each section of an explanation that has a time of all."""
    found = list[dict[str, str]]()
    for text in model.explain(engine="cuda-emulated", **size).split("\n\n"):
        text = re.sub(r"\n {14}", " ", text)
        rows = dict(re.findall(r"^  (\w[\w.]*(?: all)?)  +(.*)$", text, re.MULTILINE))
        if "in all" in rows:
            found.append(rows)
    return found


def microseconds(said: str) -> float:
    """The time that a row names."""
    (found,) = re.findall(r"([\d,.]+) us (?:predicted|less)", said)
    return float(found.replace(",", ""))


RAGGED = "one plan", "two directions", "steps part by part", "pairs of steps"
"""Models whose explanation takes the length of each sequence."""
SIZES = [(kind, {"rows": 16, "steps": 2000}) for kind in WHOLE] + [
    (kind, {"lengths": [3, 0, 1500, 20]}) for kind in RAGGED
]


@pytest.mark.parametrize(("kind", "size"), SIZES)
def test_what_a_section_says_of_all_is_the_sum_of_its_rows(kind: str, size: dict[str, Any]) -> None:
    sections = sections_of(WHOLE[kind](), **size)
    assert sections
    for rows in sections:
        texts = {name: text for name, text in rows.items() if " us " in text and name != "chosen"}
        timed = {name: microseconds(text) for name, text in texts.items()}
        whole, saved = timed.pop("in all"), timed.pop("beside", 0.0)
        each = [time for name, time in timed.items() if "." not in name]
        assert whole == pytest.approx(sum(each) - saved, abs=1.5 + 0.05 * len(each))
        assert all("most of it" in text for name, text in rows.items() if name in timed.keys() - {"time"})


@pytest.mark.parametrize("kind", ["gradients in chunks", "steps part by part", "pairs of steps"])
def test_every_part_of_a_schedule_has_a_time(kind: str) -> None:
    model = WHOLE[kind]()
    text = model.explain(engine="cuda-emulated", rows=16, steps=100).split("parts, in the order they run")[1]
    listed = re.findall(r"^  (\d[\d.]*) +[a-z]", text.split("\n\n")[0], re.MULTILINE)
    timed = max(sections_of(model, rows=16, steps=100), key=lambda rows: "0" in rows)
    assert listed == [name for name in timed if name[0].isdigit()]
    assert all(microseconds(timed[name]) >= 0 for name in listed)


def test_sums_over_steps_and_rows_take_their_bytes_or_products() -> None:
    """Of a GRU of 64 units, 16 sequences of 2000 steps: two biases, whose gradients are first those of each
    sequence; and two weights of 192 columns, whose tiles have 64 x 64 numbers, in parts of 512 steps. The
    tiles of the recurrent weight are 3 x 63 parts, two turns of 132 blocks; of the other one, 16 rows of 12.
    """
    rows = next(
        rows for rows in sections_of(WHOLE["sums of gradients"](), rows=16, steps=2000) if "total" in rows
    )
    of_rows = 2 * 4 * 192 * (16 * 2000 + 16)
    assert rows["reduced"] == f"2 sums of values; {of_rows / BYTES:.1f} us predicted, most of it main memory"
    turns = 2 * 132 * 2 * 64 * 64 * 512
    assert microseconds(rows["total"]) > turns / FLOPS
    assert rows["total"].startswith("2 sums of values, 2 sums of products; ")


def test_the_launches_of_an_explanation_are_those_of_a_call(codes: list[Any]) -> None:
    """Of the backward pass of a GRU: its loop, sums and products; and its explanation counts no others."""
    run, x = gradient(recurrence("gru", 8), 12), np.ones((1, 1030, 12), "f4")
    told = [rows["in all"] for rows in sections_of(run, rows=1, steps=1030)]
    found = [int(re.findall(r"(\d+) launches", text)[0]) for text in told]
    outputs, backward = run(x, engine="cuda-emulated")
    assert len([code for code in codes if "constants" not in code.name]) == found[0]
    codes.clear()
    backward(*(np.ones_like(each) for each in outputs))
    assert len([code for code in codes if "constants" not in code.name]) == found[1]


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
