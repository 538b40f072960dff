"""`model.to(device)`: the engine of a copy, wherever `engine="auto"` is left."""

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.compiler.targets import engine_named
from stepnet.errors import DeviceError, InputError, RefusedError

EMULATED = "cuda-emulated"
TF32 = "cuda-emulated:tf32"
NOWHERE = "cuda:99:tf32"
UNITS = 32


def step(x: Any, h: Any, params: Any) -> tuple[Any, Any]:
    """A tanh step, which runs on tensor cores."""
    made = np.tanh(x @ params["W"] + h @ params["U"])
    return made, made


def recurrence(seed: int = 0, **options: Any) -> sn.RNN:
    """A recurrence of the step."""
    rng = np.random.default_rng(seed)
    params = {name: rng.normal(size=(UNITS, UNITS), scale=0.2).astype("float32") for name in ("W", "U")}
    return sn.RNN(step, params, memory=UNITS, inputs=UNITS, **options)


RECURRENCE = recurrence()


def model_of(x: Any, params: Any) -> Any:
    """The outputs of a recurrence, scaled."""
    return RECURRENCE(x)[0] * params


def models() -> dict[str, Any]:
    """A model of each class."""
    return {
        "RNN": recurrence(),
        "Stack": sn.Stack([recurrence(), recurrence(seed=1)]),
        "Bidirectional": sn.Bidirectional(recurrence(), recurrence(reverse=True)),
        "Graph": sn.Graph(model_of, np.float32(2)),
    }


X = np.random.default_rng(1).normal(size=(3, 5, UNITS)).astype("float32")
PLACED = {name: model.to(EMULATED, precision="tf32") for name, model in models().items()}
NAMES = list(PLACED)


def outputs_of(model: Any, x: Any = X, **options: Any) -> Any:
    """The outputs of a call."""
    made = model(x, **options)
    return made[0] if model.gives_final else made


@pytest.mark.parametrize("name", NAMES)
def test_calls_run_on_the_device(name: str) -> None:
    """Calls have the bits of engine=, also when they are prepared; the original keeps its own."""
    original, placed = models()[name], PLACED[name]
    expected, exact = outputs_of(original, engine=TF32), outputs_of(original)
    assert not np.array_equal(expected, exact)
    for _ in range(4):
        np.testing.assert_array_equal(outputs_of(placed), expected)
        np.testing.assert_array_equal(outputs_of(original), exact)
        np.testing.assert_array_equal(outputs_of(placed, engine="llvm"), exact)
    np.testing.assert_array_equal(outputs_of(placed.to("cpu")), exact)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_run_on_the_device(name: str) -> None:
    original, placed = models()[name], PLACED[name]
    seeds = outputs_of(original)
    made = [
        np.asarray(sn.vjp(model)(X, engine=engine)[1](seeds).inputs)
        for model, engine in ((original, TF32), (placed, "auto"), (original, "auto"))
    ]
    np.testing.assert_array_equal(made[0], made[1])
    assert not np.array_equal(made[1], made[2])


def test_tangents_and_losses_run_on_the_device() -> None:
    """Losses and tangents have the bits of engine=, and not those of the CPU."""
    original, placed = models()["RNN"], PLACED["RNN"]

    def both(model: Any, engine: str) -> Any:
        """A tangent of the outputs, and the value of a loss."""
        _, (tangent, _) = sn.jvp(model)(X, {"inputs": X}, engine=engine)
        loss, _ = sn.value_and_grad(lambda outputs, _: np.mean(outputs, axis=-1), model)(X, engine=engine)
        return tangent, loss

    here, there, placed_there = both(original, "auto"), both(original, TF32), both(placed, "auto")
    np.testing.assert_array_equal(placed_there[0], there[0])
    assert placed_there[1] == there[1] != here[1]
    assert not np.array_equal(there[0], here[0])


@pytest.mark.parametrize("name", ["RNN", "Stack", "Graph"])
def test_streams_run_on_the_device(name: str) -> None:
    stream, expected = PLACED[name].stream(rows=3), outputs_of(PLACED[name])
    for index in range(2):
        np.testing.assert_array_equal(stream.step(X[:, index]), expected[:, index])


def test_generation_runs_on_the_device() -> None:
    """Generation and beam search are refused by a device that is not there."""

    def embedded(symbol: Any, h: Any, params: Any) -> tuple[Any, Any]:
        """A step over symbols, whose outputs are their scores."""
        h = np.tanh(params["W"][symbol] + h @ params["U"])
        return h, h

    rnn = sn.RNN(embedded, RECURRENCE.params, memory=UNITS, inputs=sn.Spec((), "int64"))
    start = [np.array([1, 2])]
    for model in (rnn.to(EMULATED), rnn.on_engine(NOWHERE).to("cpu")):
        assert len(sn.generate(model, start, max_steps=3)) == 1
    with pytest.raises(RefusedError, match=f"{NOWHERE}: there is no"):
        sn.generate(rnn.on_engine(NOWHERE), start, max_steps=3)
    with pytest.raises(RefusedError, match=f"{NOWHERE}: there is no"):
        sn.beam_search(rnn.on_engine(NOWHERE), start, beams=2, max_steps=2)


def test_parameters_are_copied_to_the_device_once() -> None:
    """Calls of other forms, streams and gradients read the copies of the first call."""
    engine: Any = engine_named(EMULATED)
    rnn = recurrence().to(EMULATED)
    rnn(X[:, :1])
    before = set(engine.memory.constants)
    assert {id(array) for array in rnn.params.values()} <= before
    rnn(X[:2], lengths=[3, 1], mask=np.ones((2, 5), bool))
    rnn.stream(rows=3).step(X[:, 0])
    _, back = sn.vjp(rnn)(X)
    back(*rnn(X))
    assert set(engine.memory.constants) == before
    del rnn, back
    gc.collect()
    assert set(engine.memory.constants) < before


def test_explanations_are_of_the_device() -> None:
    placed = PLACED["RNN"]
    outputs_of(placed)
    assert f"engine: {TF32}" in placed.explain()
    assert "tf32" in placed.explain(rows=3, steps=5)
    assert TF32 in sn.vjp(placed).explain()
    assert "engine: llvm" in placed.explain("llvm")


@pytest.mark.parametrize("name", NAMES)
def test_copies_keep_the_device_and_files_do_not(name: str, tmp_path: Path) -> None:
    placed = PLACED[name]
    expected = outputs_of(placed)
    for made in (
        copy.copy(placed),
        copy.deepcopy(placed),
        pickle.loads(pickle.dumps(placed)),
        placed.with_params(placed.params),
    ):
        assert made.default_engine == TF32
        np.testing.assert_array_equal(outputs_of(made), expected)
    placed.save(tmp_path / "model.stepnet")
    assert sn.load(tmp_path / "model.stepnet").default_engine == "auto"


def test_the_text_of_a_model_names_the_device() -> None:
    rnn = recurrence()
    assert str(rnn.to(EMULATED)) == f"{rnn} on cuda-emulated"
    outputs_of(graph := PLACED["Graph"])  # before a call the text is another one
    assert str(graph).splitlines()[0].startswith(f"model_of on {TF32}")


def test_auto_among_several_engines_is_the_device() -> None:
    assert PLACED["RNN"].engine_order(["onednn", "auto"]) == ("onednn", TF32)
    assert PLACED["RNN"].to("cpu").engine_order(["onednn", "auto"]) == ("onednn", "auto")


def test_a_layer_runs_where_the_model_around_it_does() -> None:
    stack = sn.Stack([PLACED["RNN"], recurrence(seed=1)])
    np.testing.assert_array_equal(outputs_of(stack), outputs_of(models()["Stack"]))


def test_layers_that_end_early_run_on_the_device() -> None:
    def until(output: Any, memory: Any) -> Any:
        """Ends a sequence at its third step."""
        return memory["index"] >= 2

    def counted(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """The tanh step, which counts."""
        made = np.tanh(x @ params["W"] + memory["h"] @ params["U"])
        return made, {"h": made, "index": memory["index"] + np.float32(1)}

    early = sn.RNN(
        counted, RECURRENCE.params, memory={"h": UNITS, "index": sn.Spec((), "float32")}, until=until
    )
    stack = sn.Stack([early])
    made = outputs_of(stack.to(EMULATED, precision="tf32"))
    np.testing.assert_array_equal(made.values, outputs_of(stack, engine=TF32).values)
    with pytest.raises(RefusedError, match=f"{NOWHERE}: there is no"):
        outputs_of(stack.on_engine(NOWHERE))


def test_a_quantized_graph_gets_its_engines_back() -> None:
    graph = sn.quantize(sn.Graph(model_of, np.float32(2)), [X], "bfloat16", engine=("onednn", "llvm"))
    placed = graph.to(EMULATED)
    assert placed.default_engine == EMULATED
    assert pickle.loads(pickle.dumps(placed)).default_engine == EMULATED
    assert placed.to("cpu").default_engine == ("onednn", "llvm")
    assert " on " not in repr(graph)
    with pytest.raises(RefusedError, match=f"{TF32}: it has no recurrences in fewer bits"):
        sn.quantize(PLACED["Graph"], [X], "bfloat16")


@pytest.mark.parametrize(
    ("device", "options", "message"),
    [
        ("mps", {}, "device is 'cpu', 'cuda', 'cuda:1' .*, or 'cuda-emulated', not 'mps'"),
        (3, {}, "not 3"),
        ("cuda:tf32", {}, "not 'cuda:tf32'"),
        ("cpu:1", {}, "not 'cpu:1'"),
        ("cuda", {"precision": "fp8"}, "precision is 'float32', 'tf32' or 'bfloat16', not 'fp8'"),
        (EMULATED, {"batch_invariant": "yes"}, "batch_invariant is True or False, not 'yes'"),
        ("cpu", {"precision": "tf32"}, "precision= and batch_invariant= are options of a GPU, not of 'cpu'"),
    ],
)
def test_other_devices_and_options_are_refused(device: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RECURRENCE.to(device, **options)


def test_a_device_that_is_not_here_is_named() -> None:
    """The reason is that of a call with engine=."""
    with pytest.raises(DeviceError, match=f"{NOWHERE}: there is no") as raised:
        RECURRENCE.to("cuda:99", precision="tf32")
    with pytest.raises(RefusedError) as refused:
        RECURRENCE(X, engine=NOWHERE)
    assert str(raised.value) in str(refused.value)


def test_the_device_is_not_set_in_place() -> None:
    with pytest.raises(InputError, match=r"default_engine of this RNN cannot be set: to\(device\) returns"):
        PLACED["RNN"].default_engine = "llvm"
    with pytest.raises(AttributeError, match=r'"cuda"\) returns a copy that runs on a GPU'):
        PLACED["RNN"].cuda()
