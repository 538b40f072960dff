"""A step that draws random numbers, or reads the time, is refused: its trace would have them as constants."""

import dataclasses
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import stepnet as sn
import stepnet.torch
from stepnet.errors import StepError

WEIGHTS = np.ones((3, 3), "float32")
RNG = np.random.default_rng(0)
STATE = np.random.RandomState(0)
OWN = random.Random(0)
GENERATOR = torch.Generator()


class Noise:
    """An object that holds a generator, deep inside."""

    def __init__(self) -> None:
        self.parts = {"a": [np.random.default_rng(1)]}

    def draw(self) -> Any:
        """A number."""
        return self.parts["a"][0].normal()


NOISE = Noise()
SYSTEM, SEEDS, TOKEN = random.SystemRandom(), np.random.SeedSequence(0), secrets.token_bytes


@dataclasses.dataclass(slots=True)
class Slots:
    """An object with slots that holds a generator."""

    generator: Any


SLOTS = Slots(np.random.default_rng(0))


def legacy_state() -> Any:
    """The numbers of NumPy's global generator."""
    state: Any = np.random.get_state()
    return state[1].tolist()


DRAWN: dict[str, tuple[Callable[[], Any], str]] = {
    "np.random.normal": (lambda: np.random.normal(), "np.random"),
    "np.random.rand": (lambda: np.random.rand(3).astype("float32"), "np.random"),
    "random.random": (lambda: random.random(), "random"),
    "random.gauss": (lambda: random.gauss(0, 1), "random"),
    "random.choice": (lambda: random.choice([1.0, 1.0]), "random"),
    "generator": (lambda: RNG.normal(size=3), "`RNG`"),
    "integers": (lambda: RNG.integers(3), "`RNG`"),
    "RandomState": (lambda: STATE.rand(), "`STATE`"),
    "Random": (lambda: OWN.random(), "`OWN`"),
    "slots": (lambda: SLOTS.generator.random(), "`SLOTS.generator`"),
    "spawned": (lambda: RNG.spawn(1)[0].random(), "`RNG`"),
    "spawned by bits": (
        lambda: np.random.Generator(RNG.bit_generator.spawn(1)[0]).random(),
        "`RNG`",
    ),
    "spawned seeds": (lambda: SEEDS.spawn(1)[0].generate_state(1)[0] % 7, "`SEEDS`"),
    "inside": (lambda: NOISE.draw(), "`NOISE.parts['a'][0]`"),
}
FRESH: dict[str, Callable[[], Any]] = {
    "unseeded": lambda: np.random.default_rng().normal(),
    "time": lambda: time.time() % 1,
    "perf_counter": lambda: time.perf_counter() % 1e-3,
    "uuid1": lambda: uuid.uuid1().int % 10**30 / 1e30,
}
OF_SYSTEM: dict[str, Callable[[], Any]] = {
    "SystemRandom": lambda: random.SystemRandom().choice([1.0, 1.0]),
    "SystemRandom object": lambda: SYSTEM.random(),
    "secrets": lambda: secrets.choice([1.0, 1.0]),
    "token_bytes": lambda: TOKEN(1)[0],
    "os.urandom": lambda: os.urandom(1)[0],
    "uuid4": lambda: uuid.uuid4().int % 2,
}
OF_TORCH: dict[str, tuple[Callable[[], Any], str]] = {
    "torch.rand": (lambda: torch.rand(3).numpy(), "torch"),
    "torch.Generator": (lambda: torch.rand(3, generator=GENERATOR).numpy(), "`GENERATOR`"),
}


def step_of(draw: Callable[[], Any]) -> Callable[..., Any]:
    """A step that multiplies by what is drawn."""

    def step(x: Any, memory: Any, params: Any) -> Any:
        before = x @ params
        noise = draw()
        return before * np.float32(noise), memory

    return step


def test_the_line_of_a_draw_after_other_operations_is_the_users():
    def step(x: Any, memory: Any, params: Any) -> Any:
        return np.tanh(x @ params) + np.random.rand(), memory

    with pytest.raises(StepError, match=r"test_draws\.py:\d+: return np\.tanh\(x @ params\) \+ np"):
        sn.RNN(step, WEIGHTS, memory=3, inputs=3)


def test_the_line_of_a_draw_between_operations_of_pytorch_is_the_users():
    def step(x: Any, memory: Any, params: Any) -> Any:
        return torch.tanh(x @ params) + np.random.rand(), memory

    example = torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(3, 3)
    with pytest.raises(StepError, match=r"test_draws\.py:\d+: return torch\.tanh\(x @ params\) \+ np"):
        stepnet.torch.trace(step, example)


def test_a_step_of_an_installed_package_may_not_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    code = "import numpy as np\ndef step(x, memory, params):\n    return x + np.random.rand(), memory\n"
    (folder / "noisy_steps.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(StepError, match=r"draws random numbers from np\.random"):
        sn.RNN(import_module("noisy_steps").step, WEIGHTS, memory=3, inputs=3)


@pytest.mark.parametrize("name", [*DRAWN, *OF_TORCH])
def test_a_step_that_draws_is_refused_with_the_line(name: str):
    draw, source = (DRAWN | OF_TORCH)[name]
    with pytest.raises(StepError) as error:
        sn.RNN(step_of(draw), WEIGHTS, memory=3, inputs=3)
    text = str(error.value)
    assert f"draws random numbers from {source}, and a trace" in text
    assert "as an input (drawn per step) or a static (per sequence)\n  at " in text
    line = text.rpartition("\n  at ")[2]
    assert "lambda: " in line or "self.parts" in line
    assert __file__ in line


@pytest.mark.parametrize("name", FRESH)
def test_a_step_that_reads_other_numbers_each_time_is_refused(name: str):
    with pytest.raises(StepError, match="reads different numbers each time that it is traced") as error:
        sn.RNN(step_of(FRESH[name]), WEIGHTS, memory=3, inputs=3)
    assert "return before * np.float32(noise), memory" in str(error.value)


@pytest.mark.parametrize("name", OF_SYSTEM)
def test_a_step_that_draws_from_the_operating_system_is_refused_with_the_line(name: str):
    before = sys.getprofile()
    with pytest.raises(StepError, match="draws random numbers from the operating system, and a") as error:
        sn.RNN(step_of(OF_SYSTEM[name]), WEIGHTS, memory=3, inputs=3)
    line = str(error.value).rpartition("\n  at ")[2]
    assert __file__ in line
    assert "lambda: " in line
    assert sys.getprofile() is before


def test_a_generator_of_the_operating_system_that_is_only_held_is_accepted():
    held = {"random": SYSTEM, "scale": 2.0}
    sn.RNN(step_of(lambda: held["scale"]), WEIGHTS, memory=3, inputs=3)


def test_draws_are_refused_wherever_a_step_is_traced():
    def draw() -> Any:
        return RNG.normal()

    sequences = np.ones((2, 3, 3), "float32")
    lazy = sn.RNN(step_of(draw), WEIGHTS, memory=3)
    traces: list[Callable[[], Any]] = [
        lambda: lazy(sequences),
        lambda: sn.Graph(lambda x, params: x * np.float32(draw()), inputs=3),
        lambda: sn.Graph(lambda x, params: lazy(x)[0])(sequences),
        lambda: sn.RNN(lambda x, h, p: (x, h), memory=3, until=lambda output, h: output[:, 0] > draw())(
            sequences
        ),
        lambda: sn.foreach(lambda x, h: (x * np.float32(draw()), h), sequences, np.zeros((2, 3), "float32")),
    ]
    plain = sn.RNN(lambda x, h, p: (x @ p, h), WEIGHTS, memory=3)
    loss = sn.value_and_grad(lambda outputs, targets: ((outputs - targets) ** 2).sum(-1) * draw(), plain)
    traces.append(lambda: loss(sequences, sequences))
    for trace in traces:
        with pytest.raises(StepError, match="draws random numbers from `"):
            trace()


def test_what_is_the_same_each_time_is_traced():
    def same(x: Any, memory: Any, params: Any) -> Any:
        table = np.random.default_rng(3).normal(size=3).astype("float32")
        return x * table, memory

    outputs, _ = sn.RNN(same, memory=3)(np.ones((1, 1, 3), "float32"))
    assert np.array_equal(outputs[0, 0], np.random.default_rng(3).normal(size=3).astype("float32"))


def test_a_step_without_draws_is_called_once_and_moves_no_generator():
    calls = list[int]()

    def step(x: Any, memory: Any, params: Any) -> Any:
        calls.append(1)
        return x, memory

    before = legacy_state(), random.getstate(), RNG.bit_generator.state
    sn.RNN(step, memory=3, inputs=3)
    after = legacy_state(), random.getstate(), RNG.bit_generator.state
    assert calls == [1]
    assert before == after


def test_draws_of_another_thread_are_none_of_the_step():
    drawn, done = threading.Event(), threading.Event()

    def other() -> None:
        done.wait(10)
        random.random()
        drawn.set()

    thread = threading.Thread(target=other)
    thread.start()

    def step(x: Any, memory: Any, params: Any) -> Any:
        done.set()
        drawn.wait(10)
        return x, memory

    sn.RNN(step, memory=3, inputs=3)
    thread.join()


def test_a_trace_function_of_a_debugger_is_put_back():
    before = sys.gettrace()
    with pytest.raises(StepError, match="draws random numbers"):
        sn.RNN(step_of(lambda: random.random()), WEIGHTS, memory=3, inputs=3)
    assert sys.gettrace() is before


@pytest.mark.parametrize(("times", "refused"), [(3, False), (99, True)])
def test_draws_of_another_thread_may_come_in_several_traces(times: int, refused: bool) -> None:
    """A step that draws itself does so in each of its traces."""
    traces, over = list[None](), threading.Event()
    waiting = threading.Thread(target=over.wait)
    waiting.start()

    def step(x: Any, h: Any, p: Any) -> Any:
        traces.append(None)
        if len(traces) <= times:
            other = threading.Thread(target=np.random.random)
            other.start()
            other.join()
        return h, np.tanh(x @ p["W"] + h)

    with pytest.raises(StepError, match="draws random numbers") if refused else nullcontext():
        sn.RNN(step, {"W": WEIGHTS}, memory=3)(np.ones((1, 2, 3), "float32"))
    over.set()
    waiting.join()


@pytest.mark.parametrize("name", ["torch", "torch.random", "numpy.random"])
def test_a_module_that_another_thread_is_importing_is_left_alone(name: str) -> None:
    """To read an attribute of it may import its other parts: a deadlock with the thread that imports them."""
    begun: Any = ModuleType(name)
    begun.__spec__ = SimpleNamespace(_initializing=True)
    with patch.dict(sys.modules, {name: begun}):
        rnn = sn.RNN(lambda x, h, p: (h, np.tanh(x @ p["W"] + h)), {"W": WEIGHTS}, memory=3)
        _, final = rnn(np.ones((1, 2, 3), "float32"))
    assert final.shape == (1, 3)
