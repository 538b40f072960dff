"""Models in fewer bits, on oneDNN and on llvm: what is chosen, how far from float32 it is, what is refused;
recorded speech.
"""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from command_line import DATA
from installed_onednn import missing_onednn
from pyarrow import parquet
from zoo import rnn_of

import stepnet as sn
import stepnet.torch
from stepnet import onednn
from stepnet.compiler.targets.onednn.library import library
from stepnet.errors import InputError, RefusedError, StepError

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Any:
    """One thread: OpenMP's wait for those of other processes."""
    if reason := missing_onednn():
        pytest.skip(reason)
    sn.set_threads(1)
    yield
    sn.set_threads(None)


def needs(dtype: str) -> None:
    if reason := library().lacks(dtype):
        pytest.skip(reason)


def matrix(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype("f4") / 2


def own_step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    h = np.sin(x @ p + h / 2)
    return h, h


def unknown(inputs: int, hidden: int) -> sn.RNN:
    return sn.RNN(own_step, matrix(inputs, hidden), memory=hidden)


class Layers:
    """An LSTM, a GRU that int8 has not, and a cell that nobody has."""

    def __init__(self) -> None:
        self.lstm, self.gru, self.own = rnn_of("lstm", 6, 8), rnn_of("gru", 8, 5), unknown(5, 3)

    def __call__(self, x: Any, p: Any) -> Any:
        h = self.gru(self.lstm(np.exp(x))[0] @ p)[0]
        return {"steps": h, "end": sn.reduce(self.own(h)[0], "last")}


def model() -> sn.Graph:
    return sn.Graph(Layers(), matrix(8, 8), inputs=6)


def samples(*lengths: int, seed: int = 1) -> sn.Ragged:
    random = np.random.default_rng(seed)
    return sn.Ragged.from_list([random.normal(size=(n, 6)).astype("f4") for n in lengths], features=6)


SAMPLES = [samples(5, 0, 9), samples(7, seed=2)]
BOTH = "onednn", "llvm"
"""oneDNN for the cells that it has in fewer bits, and llvm for all others."""


@pytest.fixture(scope="module")
def graph() -> sn.Graph:
    """A model in float32."""
    return model()


@pytest.fixture(scope="module")
def in_int8(graph: sn.Graph) -> Any:
    """The same model in int8, on both engines, which tests look at and run; to make it takes a second."""
    return sn.quantize(graph, SAMPLES, "int8", engine=BOTH)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("engine", ["llvm", BOTH], ids=str)
def test_each_recurrence_gets_the_fewest_bits_that_do(engine: Any, graph: sn.Graph) -> None:
    needs("bfloat16")
    made = sn.quantize(graph, SAMPLES, within=0.2, engine=engine)
    assert [row.dtype for row in made.report.recurrences] == ["int8"] * 3
    bound = max(error.relative for error in made.report.outputs) / 2
    close = sn.quantize(graph, SAMPLES, within=bound, engine=engine)
    assert [row.dtype for row in close.report.recurrences] != ["int8"] * 3
    assert max(error.relative for error in close.report.outputs) <= bound
    exact = sn.quantize(graph, SAMPLES, within=1e-6, engine=engine)
    assert [row.dtype for row in exact.report.recurrences] == ["float32"] * 3
    assert "an output is then more than 0.0001% away" in str(exact.report)


def test_each_engine_runs_what_it_has(graph: sn.Graph, in_int8: Any) -> None:
    whats = [row.what for row in in_int8.report.recurrences]
    assert whats == [
        "onednn, lstm (6 inputs, 8 units, int8, left2right)",
        "llvm, 195 weights in its products",
        "llvm, 15 weights in its products",
    ]
    alone = sn.quantize(graph, SAMPLES, "int8")
    assert [row.what.split(",")[0] for row in alone.report.recurrences] == ["llvm"] * 3
    assert [row.precision.scale for row in alone.report.recurrences if row.precision] == [None] * 3


def test_int8_of_onednn_needs_the_scale_of_its_inputs() -> None:
    made = sn.quantize(sn.Graph(lambda x, p: rnn_of("lstm", 6, 4)(x)[0], inputs=6), SAMPLES, "int8")
    with pytest.raises(
        RefusedError, match="int8 needs a calibration: call quantize with samples for this engine"
    ):
        made(SAMPLES[0], engine="onednn")


def test_errors_are_those_of_the_samples(graph: sn.Graph, in_int8: Any) -> None:
    for error in in_int8.report.outputs:
        both = [
            np.concatenate(
                [np.ravel(getattr(each[error.name], "values", each[error.name])) for each in outputs]
            )
            for outputs in ([run(x, engine=("onednn", "llvm")) for x in SAMPLES] for run in (in_int8, graph))
        ]
        away = both[0].astype("f8") - both[1]
        assert error.largest == np.abs(away).max() > 1e-4
        assert error.rms == pytest.approx(np.sqrt(np.mean(away**2)))
        assert error.scale == pytest.approx(np.sqrt(np.mean(both[1].astype("f8") ** 2)))


def test_scales_cover_the_inputs_of_each_recurrence(graph: sn.Graph, in_int8: Any) -> None:
    precision = in_int8.report.recurrences[0].precision
    largest = max(np.exp(x.values).max() for x in SAMPLES)
    assert precision is not None
    assert precision.scale == pytest.approx(127 / largest)
    assert precision.shift == 128
    assert f"precision=int8/{precision.scale:.4g}+128" in str(in_int8.net)
    finer = sn.quantize(graph, SAMPLES, "int8", keep=0.9, engine=BOTH).report.recurrences[0].precision
    assert finer is not None
    assert precision.scale is not None
    assert finer.scale is not None
    assert finer.scale > precision.scale


def test_it_is_no_part_of_another_model(in_int8: Any) -> None:
    with pytest.raises(StepError, match="a quantized graph is no part of a model: put the graph there"):
        sn.Graph(lambda x, params: in_int8(x))(SAMPLES[0])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("engine", ["llvm", BOTH], ids=str)
def test_it_is_a_graph_in_all_else(engine: Any, graph: sn.Graph, in_int8: Any) -> None:
    made = in_int8 if engine == BOTH else sn.quantize(graph, SAMPLES, "int8", engine=engine)
    x = samples(4, 2, seed=3)
    right = made(x)
    np.testing.assert_array_equal(made(x, engine=("onednn", "auto"))["end"], made(x, engine=BOTH)["end"])
    np.testing.assert_array_equal(made(x, engine=engine)["end"], right["end"])
    assert np.abs(right["end"] - graph(x)["end"]).max() > 1e-4
    copied = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(copied(x)["end"], right["end"])
    assert str(copied.report) == str(made.report)
    text = made.explain()
    assert ("engine      onednn\n  enough      int8" in text) == (engine == BOTH)
    assert " in int8 " in text
    assert str(graph.net).count("precision") == 0


@pytest.mark.parametrize("engine", ["llvm", BOTH], ids=str)
def test_other_parameters_have_scales_of_their_own(engine: Any) -> None:
    """A model whose weights are parameters: with weights 50 times as large the old scales would saturate."""

    def step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        gates = x @ p["W"] + h["h"] @ p["R"]
        i, f, g, o = np.split(gates, 4, axis=-1)
        c = sn.sigmoid(f) * h["c"] + sn.sigmoid(i) * np.tanh(g)
        h = sn.sigmoid(o) * np.tanh(c)
        return h, {"h": h, "c": c}

    def net(x: Any, p: Any) -> Any:
        return sn.RNN(step, p, memory={"h": 8, "c": 8})(x, initial="zeros")[0]

    params = {"W": matrix(6, 32) / 50, "R": matrix(8, 32) / 50}
    graph = sn.Graph(net, params, inputs=6)
    made = sn.quantize(graph, SAMPLES, "int8", engine=engine)
    large = {name: 50 * array for name, array in params.items()}
    x = samples(6, seed=5)
    away = made.with_params(large)(x).values - graph.with_params(large)(x).values
    assert np.abs(away).max() < 0.1


def test_the_report_prints(in_int8: Any) -> None:
    lines = str(in_int8.report).splitlines()
    assert lines[0] == "2 samples of 21 steps, no bound"
    assert lines[1] == "recurrence 0 in int8: onednn, lstm (6 inputs, 8 units, int8, left2right)"
    assert lines[-2].startswith("output steps: at most ")


WRONG: dict[str, tuple[Any, str]] = {
    "none": ([], "samples is a list of inputs"),
    "no list": (SAMPLES[0], "samples is a list of inputs"),
    "no steps": ([samples(0), samples(0, 0)], "the samples have no steps"),
    "NaN": ([SAMPLES[0], np.full((1, 2, 6), np.nan, "f4")], "sample 1 has NaN or infinity"),
    "infinity": ([np.full((1, 2, 6), np.inf, "f4")], "sample 0 has NaN or infinity"),
    "another dtype": ([SAMPLES[0], np.zeros((1, 2, 6))], "sample 1 has other features or dtypes"),
    "features": ([np.zeros((1, 2, 5), "f4")], r"features \[5\]"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_wrong_samples(graph: sn.Graph, wrong: Any, message: str) -> None:
    graph = sn.Graph(Layers(), matrix(8, 8)) if message.endswith("dtypes") else graph
    with pytest.raises(InputError, match=message):
        sn.quantize(graph, wrong)


def test_other_wrong_arguments(graph: sn.Graph, in_int8: Any) -> None:
    wrong: Any
    for options, message in (
        ({"dtype": "int4"}, "dtype is one of int8, bfloat16, auto"),
        ({"within": 0.0}, "within is a relative error above 0"),
        ({"within": float("nan")}, "within is a relative error above 0"),
        ({"within": "a"}, "within is a relative error above 0, not 'a'"),
        ({"within": np.ones(3)}, "within is a relative error above 0, not an array"),
        ({"keep": 0.0}, "keep is the part"),
        ({"keep": None}, "keep is the part"),
        ({"statics": 3}, "statics is a list of the statics of each sample, not 3"),
        ({"statics": [None]}, "there are 2 samples and 1 statics"),
    ):
        wrong = options
        with pytest.raises(InputError, match=message):
            sn.quantize(graph, SAMPLES, **wrong)
    quantized: Any = in_int8, sn.quantize(rnn_of("gru", 6, 4), SAMPLES, "int8")
    for wrong in (*quantized, sn.Stack([quantized[1]]), lambda x: x):
        with pytest.raises(
            InputError, match="model is a Graph, an RNN, a Stack or a Bidirectional that is not"
        ):
            sn.quantize(wrong, SAMPLES)
    with pytest.raises(InputError, match="no engine is called 'cudnn'"):
        sn.quantize(graph, SAMPLES, engine="cudnn")


def test_a_model_without_such_recurrences_is_refused_with_all_reasons() -> None:
    graph = sn.Graph(lambda x, p: rnn_of("gru", 6, 4)(rnn_of("gru", 6, 6)(x)[0])[0], inputs=6)
    with pytest.raises(RefusedError, match=r"(?s)fewer bits.*onednn: .*lbr_gru.*not in int8"):
        sn.quantize(graph, SAMPLES, "int8", engine="onednn")
    total = sn.RNN(lambda x, h, p: (h + x, h + x), memory=6)
    with pytest.raises(RefusedError, match="llvm: it has no product of float32 values with parameters"):
        sn.quantize(total, SAMPLES)
    double = sn.cells.CELLS["gru"].parameters(6, 4, seed=0)
    doubles = sn.cells.rnn("gru", {name: array.astype("f8") for name, array in double.items()})
    with pytest.raises(RefusedError, match="llvm: it has no product of float32 values with parameters"):
        sn.quantize(doubles, [x.with_values(x.values.astype("f8")) for x in SAMPLES])
    none = "no recurrence over flat sequences with no other recurrence in its step"
    with pytest.raises(RefusedError, match=none):
        sn.quantize(sn.Graph(lambda x, p: x + 1, inputs=6), SAMPLES)
    words = rnn_of("gru", 6, 4)
    entered = sn.RNN(lambda x, h, p: (h, words(x, initial=h)[1]), memory=4)
    sample = SAMPLES[0]
    documents = sn.Ragged(sample.values, (np.array([0, len(sample)]), *sample.offsets))
    with pytest.raises(RefusedError, match=none):
        sn.quantize(entered, [documents])
    kernel = np.ones((6, 6, 3), "float32")
    strided = sn.Graph(lambda x, p: rnn_of("gru", 6, 4)(sn.conv1d(x, kernel, stride=2))[0], inputs=6)
    with pytest.raises(RefusedError, match="have other numbers of steps than the inputs, as after a stride"):
        sn.quantize(strided, SAMPLES)


def test_statics_and_several_inputs() -> None:
    def net(x: Any, p: Any, statics: Any) -> Any:
        return rnn_of("lstm", 6, 4)(np.exp(x["a"]) * sn.expand(statics, x["a"]) + x["b"])[0]

    graph = sn.Graph(net)
    xs = [{"a": each, "b": each} for each in SAMPLES]
    still = [np.full((3, 6), 4.0, "f4"), np.full((1, 6), 2.0, "f4")]
    made = sn.quantize(graph, xs, "int8", statics=still, engine=BOTH)
    away = made(xs[0], statics=still[0]).values - graph(xs[0], statics=still[0]).values
    assert 1e-5 < np.abs(away).max() <= made.report.outputs[0].largest * 1.0001
    precision = made.report.recurrences[0].precision
    assert precision is not None
    largest = max(np.exp(x.values).max() * s[0, 0] for x, s in zip(SAMPLES, still, strict=True))
    assert precision.scale == pytest.approx(127 / largest)


# ---- recorded speech ---------------------------------------------------------------------------------------


def utterances(split: str) -> tuple[sn.Ragged, np.ndarray]:
    """The utterances of a split, and their speakers from 0 on."""
    table = parquet.read_table(DATA / "japanese_vowels.parquet", filters=[("split", "==", split)])
    return sn.Ragged.from_arrow(table["frames"]), table["speaker"].to_numpy().astype("i8") - 1


class Speakers(torch.nn.Module):
    """Two layers of an LSTM and a head on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm: Any = torch.nn.LSTM(12, 32, batch_first=True)
        self.out = torch.nn.Linear(32, 9)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        h = self.lstm(x)[0]
        return self.out(h[torch.arange(x.shape[0]), lengths - 1])


@pytest.fixture(scope="module")
def speakers() -> sn.Graph:
    torch.manual_seed(0)
    x, labels = utterances("train")
    module = Speakers()
    padded, lengths = x.to_padded()
    inputs, ends = torch.tensor(padded), torch.tensor(lengths)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(module(inputs, ends), torch.tensor(labels))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return stepnet.torch.graph(module.eval(), {"x": inputs[:2], "lengths": ends[:2]})


@pytest.mark.long(each=True)
@pytest.mark.parametrize("engine", ["llvm", BOTH], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "auto"])
def test_speakers_are_recognised_as_often(dtype: str, engine: Any, speakers: sn.Graph) -> None:
    needs("bfloat16")
    x, labels = utterances("test")
    made = sn.quantize(speakers, [utterances("train")[0]], dtype, engine=engine)
    assert all(row.dtype != "float32" for row in made.report.recurrences)
    whole, low = (float((graph(x).argmax(1) == labels).mean()) for graph in (speakers, made))
    print(dtype, whole, low)
    assert whole > 0.9
    assert abs(whole - low) <= 0.006


def test_onednn_runs_them(speakers: sn.Graph) -> None:
    x, _ = utterances("test")
    made = sn.quantize(speakers, [utterances("train")[0]], "int8", engine=BOTH)
    onednn.clear()
    made(x)
    assert onednn.counters()["primitives"].misses > 0


def test_a_drawing_shows_which_engine_runs_which_recurrence(graph: sn.Graph) -> None:
    needs("bfloat16")
    drawn = sn.quantize(graph, [samples(3, 5)], "bfloat16", engine=("onednn", "llvm")).draw()
    lines = [line for line in drawn.splitlines() if " units " in line or line.startswith("recurrence")]
    assert [line.rpartition("  ")[2] for line in lines] == ["(onednn)", "(onednn)", "(llvm)"]
