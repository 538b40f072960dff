"""Every model has every door: kinds of models, and the calls, methods and functions that take a model.

Each pair works, as the interpreter computes it in float64, or is refused with the message that stands here. A
public name of `Model` that no door uses fails the test.
"""

import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from linux_alone import skip_elsewhere
from tolerance import assert_close
from zoo import normal, rnn_of

import stepnet as sn
import stepnet.arrow
import stepnet.build
from stepnet.compiler.values import leaves, transform
from stepnet.errors import StepnetError

Array = np.ndarray
ROWS, STEPS, FEATURES, WIDTH = 3, 5, 4, 4
X = normal(ROWS, STEPS, FEATURES, dtype="float64")
LENGTHS = np.array([5, 2, 4])
MASK = np.arange(STEPS) % 2 == np.zeros((ROWS, 1))
START, STOP = [0, 2, 3], 1


# ---- models, of functions and classes that are pickled -----------------------------------------------------


def gru(dtype: str, seed: int = 0, **options: Any) -> sn.RNN:
    return rnn_of("gru", FEATURES, WIDTH, seed=seed, dtype=dtype, **options)


def is_large(output: Any, memory: Any) -> Any:
    return np.max(output, axis=-1) > 0.6


def until(dtype: str) -> sn.RNN:
    known = sn.cells.CELLS["gru"]
    params = known.parameters(FEATURES, WIDTH, dtype=dtype)
    step = sn.cells.rnn("gru", params).step
    return sn.RNN(step, params, memory=WIDTH, inputs=sn.Spec(FEATURES, dtype), until=is_large)


def stack(dtype: str) -> sn.Stack:
    return sn.Stack([gru(dtype), gru(dtype, 1)])


def both(dtype: str) -> sn.Bidirectional:
    return sn.Bidirectional(gru(dtype), gru(dtype, 1, reverse=True), merge="sum")


def led(x: Any, h: Any, params: Any, statics: Any = None) -> Any:
    """A step with a static that may be left out."""
    h = np.tanh(x @ params["W"] + h @ params["R"] + (0 if statics is None else statics))
    return h, h


def with_statics(dtype: str) -> sn.RNN:
    params = {"W": weights(dtype), "R": 0.5 * weights(dtype)}
    return sn.RNN(led, params, memory=WIDTH, inputs=sn.Spec(FEATURES, dtype))


@dataclass
class Led:
    """A model function with a static that may be left out: the memory that a recurrence begins with."""

    layer: sn.RNN

    def __call__(self, x: Any, params: Any, statics: Any = None) -> Any:
        return self.layer(x, initial=statics)[0] @ params


@dataclass
class Tagger:
    """A model function: two recurrences and a dense layer, an output of each step."""

    below: sn.RNN
    above: sn.RNN

    def __call__(self, x: Any, params: Any) -> Any:
        h, _ = self.below(x)
        return np.tanh(self.above(h)[0] @ params)


@dataclass
class Reader:
    """A model function that reads whole sequences: both directions, and a mean over the steps."""

    layer: sn.Bidirectional

    def __call__(self, x: Any, params: Any) -> Any:
        h, _ = self.layer(x)
        return {"steps": h @ params, "mean": sn.reduce(h, "mean")}


def weights(dtype: str) -> Array:
    return normal(WIDTH, FEATURES, dtype=dtype)


def tagger(dtype: str) -> sn.Graph:
    return sn.Graph(Tagger(gru(dtype), gru(dtype, 1)), weights(dtype), inputs=sn.Spec(FEATURES, dtype))


def led_graph(dtype: str) -> sn.Graph:
    return sn.Graph(Led(gru(dtype)), weights(dtype), inputs=sn.Spec(FEATURES, dtype))


def reader(dtype: str) -> sn.Graph:
    return sn.Graph(Reader(both(dtype)), weights(dtype), inputs=sn.Spec(FEATURES, dtype))


def stored(make: Callable[[str], sn.Model], dtype: str, folder: Path) -> Any:
    make(dtype).save(folder / f"{dtype}.stepnet", force=True)
    return sn.load(folder / f"{dtype}.stepnet")


def exported(dtype: str, folder: Path) -> Any:
    """The tagger as an ONNX model, read again; in float32, as ONNX's GRU is."""
    onnx = pytest.importorskip("stepnet.onnx", reason="onnx is not installed")
    onnx.save(tagger("float32"), folder / "m.onnx", force=True)
    return sn.load(folder / "m.onnx") if dtype == "float32" else tagger(dtype)


KINDS: dict[str, Callable[[str, Path], Any]] = {
    "rnn": lambda dtype, _: gru(dtype),
    "reverse": lambda dtype, _: gru(dtype, reverse=True),
    "until": lambda dtype, _: until(dtype),
    "stack": lambda dtype, _: stack(dtype),
    "both": lambda dtype, _: both(dtype),
    "graph": lambda dtype, _: tagger(dtype),
    "reader": lambda dtype, _: reader(dtype),
    "with statics": lambda dtype, _: with_statics(dtype),
    "graph with statics": lambda dtype, _: led_graph(dtype),
    "stored rnn": partial(stored, gru),
    "stored stack": partial(stored, stack),
    "stored graph": partial(stored, tagger),
    "onnx": exported,
}


# ---- doors -------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A model in float32, and the right one in float64, which the interpreter runs."""

    model: Any
    exact: Any
    folder: Path

    def right(self, x: Any = X, **options: Any) -> Any:
        return self.exact(x, engine="interpret", **options)

    def outputs(self, results: Any) -> Any:
        return results[0] if self.model.gives_final else results

    def agrees(self, x: Array = X, **options: Any) -> None:
        """Asserts that a call with these options gives what the right model gives."""
        right = self.right(x, **options)
        narrow = {name: in_float32(value) for name, value in options.items()}
        assert_all_close(self.model(in_float32(x), **narrow), right)


def in_float32(value: Any) -> Any:
    def narrow(leaf: Any) -> Any:
        return leaf.astype("float32") if getattr(leaf, "dtype", None) == np.float64 else leaf

    return narrow(value) if isinstance(value, np.ndarray) else transform(narrow, value)


def in_float64(value: Any) -> Any:
    return transform(lambda leaf: np.asarray(leaf, "float64"), value)


def assert_all_close(actual: Any, right: Any) -> None:
    pairs = zip(leaves(actual), leaves(right), strict=True)
    for one, other in pairs:
        if isinstance(other, sn.Ragged):
            np.testing.assert_array_equal(one.lengths, other.lengths)
            one, other = one.values, other.values
        assert_close(one, other, STEPS, 100, "float32")


def memory_of(case: Case) -> Any:
    """Memories in the structure of the model's: those at the end of the sequences."""
    if case.model.gives_final:
        return in_float64(case.model(in_float32(X))[1])
    stream = case.model.stream(ROWS)
    stream.step(in_float32(X)[:, 0])
    return in_float64(stream.state)


def given_memory(case: Case) -> Any:
    try:
        return memory_of(case)
    except StepnetError:  # a model without a stream has no memories to give; the call says why
        return np.zeros((ROWS, WIDTH))


def statics(case: Case) -> None:
    still: Any = normal(ROWS, WIDTH, seed=9, dtype="float64")
    if isinstance(case.model, sn.Stack):
        still = (still,) * len(case.model.layers)
    if isinstance(case.model, sn.Bidirectional):
        still = {"forward": still, "backward": still}
    case.agrees(statics=still)


def prepared(case: Case) -> None:
    """Calls of one form: the later ones are prepared."""
    for last_only in (False, True):
        for _ in range(4):
            case.agrees(last_only=last_only)


def time_major(case: Case) -> None:
    right = case.right()
    made = case.model(in_float32(X).swapaxes(0, 1).copy(), time_major=True)
    pairs = zip(leaves(case.outputs(made)), leaves(case.outputs(right)), strict=True)
    for one, other in pairs:
        if isinstance(one, np.ndarray) and one.ndim == 3:
            one = one.swapaxes(0, 1)
        assert_all_close([one], [other])


def stream(case: Case) -> None:
    right, made = case.outputs(case.right()), case.model.stream(ROWS)
    for step in range(STEPS):
        assert_all_close(made.step(in_float32(X)[:, step]), right[:, step])


def generate(case: Case) -> None:
    right = sn.generate(case.exact, START, stop=STOP, max_steps=6, engine="interpret")
    made = sn.generate(case.model, START, stop=STOP, max_steps=6)
    np.testing.assert_array_equal(made.values, right.values)
    np.testing.assert_array_equal(made.lengths, right.lengths)
    step_by_step = sn.generate(case.model, START, stop=STOP, max_steps=6, scores=lambda scores: scores)
    np.testing.assert_array_equal(step_by_step.values, right.values)


def beam_search(case: Case) -> None:
    right, logs = sn.beam_search(case.exact, START, beams=2, stop=STOP, max_steps=4, engine="interpret")
    made, own = sn.beam_search(case.model, START, beams=2, stop=STOP, max_steps=4)
    np.testing.assert_array_equal(made.values, right.values)
    assert_close(own.values, logs.values, STEPS, 100, "float32")


def trace_steps(case: Case) -> None:
    scopes = case.model.trace_steps(in_float32(X))
    scopes = leaves(scopes)[-1] if isinstance(scopes, tuple | dict) else scopes
    expected = case.outputs(case.right())
    if isinstance(case.model, sn.Bidirectional):
        expected = case.exact.backward(X, engine="interpret")[0]
    for name, right in {"": expected}.items() if not isinstance(expected, dict) else expected.items():
        made = scopes[f"outputs.{name}".rstrip(".")]
        values = right.values if isinstance(right, sn.Ragged) else right
        values = np.repeat(right, STEPS, axis=0) if values.ndim == 2 and name else values
        assert_close(made.values, values.reshape(made.values.shape), STEPS, 100, "float32")


def cotangents(results: Any) -> Any:
    return transform(
        lambda leaf: (
            leaf.with_values(np.ones_like(leaf.values)) if isinstance(leaf, sn.Ragged) else np.ones_like(leaf)
        ),
        results,
    )


def vjp(case: Case, **options: Any) -> None:
    made, narrow = [], {name: in_float32(value) for name, value in options.items()}
    for model, x, engine, call in (
        (case.model, in_float32(X), "auto", narrow),
        (case.exact, X, "interpret", options),
    ):
        results, backward = sn.vjp(model)(x, engine=engine, **call)
        given = cotangents(case.outputs(results))
        gradients = backward(given)
        made.append(leaves((gradients.inputs, gradients.initial if "initial" in options else None)))
    assert_all_close(*made)


def jvp(case: Case, **options: Any) -> None:
    made, narrow = [], {name: in_float32(value) for name, value in options.items()}
    for model, x, engine, call in (
        (case.model, in_float32(X), "auto", narrow),
        (case.exact, X, "interpret", options),
    ):
        results, tangents = sn.jvp(model)(x, {"inputs": np.ones_like(x)}, engine=engine, **call)
        made.append(leaves((results, tangents)))
    assert_all_close(*made)


def squares(outputs: Any, targets: Any) -> Any:
    if isinstance(outputs, dict):
        outputs, targets = outputs["steps"], targets["steps"]
    return np.sum((outputs - targets) ** 2, axis=-1)


def value_and_grad(case: Case) -> None:
    made = []
    for model, x, engine in ((case.model, in_float32(X), "auto"), (case.exact, X, "interpret")):
        targets = {"steps": x} if case.exact.noun == "graph" and 0 in case.exact.program.levels else x
        value, gradients = sn.value_and_grad(squares, model)(x, targets, wrt="inputs", engine=engine)
        made.append((value, gradients.inputs))
    assert_all_close(*made)


def with_params(case: Case) -> None:
    assert_all_close(case.model.with_params(case.model.params)(in_float32(X)), case.right())


def pickled(case: Case) -> None:
    assert_all_close(pickle.loads(pickle.dumps(case.model))(in_float32(X)), case.right())


def save(case: Case) -> None:
    case.model.save(case.folder / "again.stepnet")
    loaded = sn.load(case.folder / "again.stepnet")
    assert type(loaded) is type(case.model)
    assert_all_close(loaded(in_float32(X)), case.right())


def to_onnx(case: Case) -> None:
    onnx = pytest.importorskip("stepnet.onnx", reason="onnx is not installed")
    onnx.save(case.model, case.folder / "again.onnx")
    made = sn.load(case.folder / "again.onnx")(in_float32(X))
    right = case.right()
    if case.model.gives_final:
        right = [right[0], *leaves(right[1])]
    assert_all_close(list(made.values()) if isinstance(made, dict) else made, right)


def to_c(case: Case) -> None:
    skip_elsewhere()
    library = stepnet.build.load(stepnet.build.build(case.model, case.folder / "c").shared, trust=True)
    x = sn.Ragged.from_list(list(in_float32(X)))
    (name,) = (array.name for array in library.about.arrays if array.name.startswith("x"))
    made = library({name: x})
    right = case.outputs(case.right(sn.Ragged.from_list(list(X))))
    assert_all_close(list(made.values())[: len(leaves(right))], right)


def quantize(case: Case) -> None:
    small = sn.quantize(case.model, [in_float32(X)], "bfloat16")
    assert "bfloat16" in str(small.report)
    made, right = (leaves(case.outputs(results)) for results in (small(in_float32(X)), case.right()))
    for output, one, other in zip(small.report.outputs, made, right, strict=True):
        if isinstance(one, np.ndarray):  # where sequences end early, other numbers end them elsewhere
            away = np.sqrt(np.mean(np.square(one - other)) / np.mean(np.square(other)))
            assert_close(away, output.relative, STEPS, 100, "float32")


def progress(case: Case) -> None:
    with sn.progress(lambda _: None):
        case.agrees()


def predict(case: Case) -> None:
    rows = pa.array([row.tolist() for row in in_float32(X)], pa.list_(pa.list_(pa.float32(), FEATURES)))
    (batch,) = stepnet.arrow.predict(pa.table({"frames": rows}), case.model, result="outputs")
    right = case.outputs(case.right(sn.Ragged.from_list(list(X))))
    assert batch.num_rows == ROWS
    if isinstance(right, sn.Ragged):
        made = batch.column("outputs").flatten().flatten().to_numpy()
        assert_close(made.reshape(right.values.shape), right.values, STEPS, 100, "float32")


def explain(case: Case) -> None:
    assert "floating-point" in case.model.explain(rows=2, steps=3) or case.model.explain()


def draw(case: Case) -> None:
    assert str(case.model.draw(case.folder / "m.svg"))
    assert (case.folder / "m.svg").read_text("utf-8").startswith("<svg")


def facts(case: Case) -> None:
    """Attributes, which need no call."""
    model = case.model
    assert model.net.results
    assert model.schedule.parts
    assert model.declaration.inputs is not None
    assert model.noun
    assert set(model.kinds) <= {"params", "inputs", "initial", "statics"}
    assert model.report is None
    assert model.program is not None


def plan(case: Case) -> None:
    assert case.model.plan


def printed(case: Case) -> None:
    text = repr(case.model)
    assert re.fullmatch(rf"{type(case.model).__name__}\(.*\)", text)
    assert "object at" not in text


def on_a_device(case: Case) -> None:
    """The model on an emulated GPU, and back."""
    there = case.model.to("cuda-emulated")
    right = case.right()
    for model in (there, pickle.loads(pickle.dumps(there)), there.with_params(there.declaration.params)):
        assert repr(model) == f"{case.model!r} on cuda-emulated"
        assert_all_close(model(in_float32(X)), right)
    assert_all_close(there.to("cpu")(in_float32(X)), right)


DOORS: dict[str, Callable[[Case], None]] = {
    "call": lambda case: case.agrees(),
    "ragged": lambda case: assert_all_close(
        case.model(sn.Ragged.from_list([row[:n] for row, n in zip(in_float32(X), LENGTHS, strict=True)])),
        case.right(sn.Ragged.from_list([row[:n] for row, n in zip(X, LENGTHS, strict=True)])),
    ),
    "prepared": prepared,
    "initial": lambda case: case.agrees(initial=given_memory(case)),
    "statics": statics,
    "lengths": lambda case: case.agrees(lengths=LENGTHS),
    "last_only": lambda case: case.agrees(lengths=LENGTHS, last_only=True),
    "engine": lambda case: assert_all_close(
        case.model(in_float32(X), engine=("llvm", "interpret")), case.right()
    ),
    "mask": lambda case: case.agrees(mask=MASK),
    "masked": lambda case: case.agrees(mask=MASK, masked="zero"),
    "begun": lambda case: case.agrees(begun=[1, 2, 3]),
    "time_major": time_major,
    "stream": stream,
    "generate": generate,
    "beam_search": beam_search,
    "trace_steps": trace_steps,
    "vjp": vjp,
    "vjp with initial": lambda case: vjp(case, initial=given_memory(case)),
    "vjp with mask": lambda case: vjp(case, mask=MASK, masked="zero"),
    "vjp with begun": lambda case: vjp(case, begun=[1, 2, 3], last_only=True),
    "vjp with last_only": lambda case: vjp(case, last_only=True, lengths=LENGTHS),
    "jvp": jvp,
    "jvp with mask": lambda case: jvp(case, mask=MASK, masked="zero"),
    "value_and_grad": value_and_grad,
    "with_params": with_params,
    "to": on_a_device,
    "pickle": pickled,
    "save": save,
    "onnx.save": to_onnx,
    "build": to_c,
    "quantize": quantize,
    "progress": progress,
    "predict": predict,
    "explain": explain,
    "draw": draw,
    "facts": facts,
    "plan": plan,
    "repr": printed,
}

OF_DOORS = {
    "declaration": "facts",
    "default_engine": "to",
    "draw": "draw",
    "explain": "explain",
    "kinds": "facts",
    "net": "facts",
    "noun": "facts",
    "plan": "plan",
    "program": "facts",
    "report": "facts",
    "save": "save",
    "schedule": "facts",
    "stream": "stream",
    "to": "to",
    "trace_steps": "trace_steps",
    "until": "vjp",
    "with_params": "with_params",
}
"""The door that uses each public name of a model."""
INSIDE = """
    as_layers by_recurrence bytes_between change_check described digest ends_early engine_order
    explained first_engine for_stream frame_step gives_final gradient_call gradient_order
    gradient_program gradient_reading gradient_refusal meant on_device on_engine outputs read reading
    schedules specification unprepared
"""
"""The names by which doors ask a model: `predict` for bytes_between, `vjp` for gradient_call, ..."""

# ---- what is refused, by door and kind ---------------------------------------------------------------------

NO_STATICS = "no parameter named `statics`|was saved for None|takes no statics"
BACKWARD = "begins at a sequence's last step"
PARTS = "the model runs in several parts, each with a plan of its own"
BACKWARDS = dict.fromkeys(("reverse", "both", "reader"), BACKWARD)
NO_STREAM = "a graph runs step by step: this model has no stream: a recurrence of it"
REFUSED: Mapping[str, Mapping[str, str]] = {
    "initial": {"reader": f"with initial= {NO_STREAM}"},
    "vjp with initial": {"reader": f"with initial= {NO_STREAM}"},
    "statics": dict.fromkeys(set(KINDS) - {"with statics", "graph with statics"}, NO_STATICS),
    "mask": {"reader": f"with mask= {NO_STREAM}"},
    "masked": {"reader": f"with mask= {NO_STREAM}"},
    "vjp with mask": {"reader": f"with mask= {NO_STREAM}"},
    "jvp with mask": {"reader": f"with mask= {NO_STREAM}"},
    "begun": {"reader": f"with begun= {NO_STREAM}"},
    "vjp with begun": {"reader": f"with begun= {NO_STREAM}"},
    "stream": {**BACKWARDS, "until": "a stream runs on: it has no until="},
    "generate": {
        **BACKWARDS,
        "until": "generated sequences end by stop=; make the recurrence without until=",
    },
    "beam_search": {
        **BACKWARDS,
        "until": "generated sequences end by stop=; make the recurrence without until=",
    },
    "value_and_grad": {
        "until": "where a recurrence with until= ends is known when it has run: take vjp of it"
    },
    "onnx.save": {"until": "sequences that end early (until=) are not exported"},
    "build": {"until": "sequences that end early (until=) are not built"},
    "plan": dict.fromkeys(
        ("stack", "both", "graph", "reader", "stored stack", "stored graph", "onnx"), PARTS
    ),
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_model_has_every_door(kind: str, door: str, tmp_path: Path) -> None:
    make, message = KINDS[kind], REFUSED.get(door, {}).get(kind)
    case = Case(make("float32", tmp_path), make("float64", tmp_path), tmp_path)
    if message is None:
        DOORS[door](case)
        return
    message = message if "|" in message else re.escape(message)
    with pytest.raises(StepnetError, match=message):
        DOORS[door](case)


def test_every_public_name_of_a_model_is_of_a_door() -> None:
    assert {name for name in dir(sn.Model) if not name.startswith("_")} == {*OF_DOORS, *INSIDE.split()}
    assert {*OF_DOORS.values()} <= {*DOORS}
