"""A model that was saved and loaded gives the same bits, in all that a model does."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from same_bits import assert_same_bits
from tolerance import assert_close
from zoo import normal, rnn_of, sequences

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.errors import FileError, InputError
from tests.model.stored.saved_models import CASES, GOLDEN, X, values_of, version_of

DATA = Path(__file__).parents[2] / "layout" / "files" / "data"


def again(model: sn.Model, folder: Path, name: str = "m") -> Any:
    """The model after it was saved and loaded."""
    path = folder / f"{name}.stepnet"
    model.save(path, force=True)
    return sn.load(path)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", CASES)
def test_a_call_gives_the_same_bits(name: str, tmp_path: Path):
    case = CASES[name]()
    expected = case.call(case.model)
    loaded = again(case.model, tmp_path)
    assert type(loaded) is type(case.model)
    assert_same_bits(case.call(loaded), expected)
    if name != "one_layer_twice":  # whose latest program is that of the second layer
        assert str(loaded.net) == str(case.model.net)
    assert str(loaded.report) == str(case.model.report)
    twice = again(loaded, tmp_path, "twice")
    assert (tmp_path / "twice.stepnet").read_bytes() == (tmp_path / "m.stepnet").read_bytes()
    assert_same_bits(case.call(twice), expected)
    assert_same_bits(case.call(pickle.loads(pickle.dumps(loaded))), expected)


@pytest.mark.parametrize("ending", ["safetensors", "bin2"])
def test_a_file_of_another_ending_is_the_model_that_was_saved(ending: str, tmp_path: Path):
    model, x = rnn_of("gru", 3, 4), normal(2, 5, 3)
    model.save(tmp_path / "m.stepnet")
    os.rename(tmp_path / "m.stepnet", tmp_path / f"m.{ending}")
    assert_same_bits(sn.load(tmp_path / f"m.{ending}")(x), model(x))


def graph_of_steps() -> sn.Graph:
    """A graph with a stream: each output depends on earlier steps alone."""
    layer = rnn_of("gru", 3, 4)
    return sn.Graph(lambda x, params: sn.sigmoid(layer(x)[0] @ params["W"]), {"W": normal(4, 2)})


STREAMED: dict[str, Callable[[], Any]] = {
    "rnn": lambda: rnn_of("gru", 3, 4),
    "stack": lambda: sn.Stack([rnn_of("gru", 3, 4), rnn_of("lstm", 4, 2)]),
    "graph": graph_of_steps,
    "quantized": lambda: sn.quantize(rnn_of("gru", 3, 4), [normal(2, 5, 3)], "int8"),
}


@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_gives_the_same_bits(name: str, tmp_path: Path):
    model, x = STREAMED[name](), normal(2, 5, 3)
    model(x)
    streams = [each.stream(rows=2) for each in (model, again(model, tmp_path))]
    for step in range(x.shape[1]):
        assert_same_bits(*(stream.step(x[:, step]) for stream in streams))
    assert_same_bits(*(stream.state for stream in streams))


@pytest.mark.long(every=4)
@pytest.mark.parametrize(
    "name", ["gru", "structures", "attention", "stack", "graph", "bfloat16", "early_ends"]
)
def test_gradients_have_the_same_bits(name: str, tmp_path: Path):
    case = CASES[name]()
    case.call(case.model)
    given: list[Any] = []
    for model in (case.model, again(case.model, tmp_path)):
        results, backward = sn.vjp(model)(*case.arguments, **case.options)
        cotangents = (results,) if isinstance(model, sn.Graph) else (results[0],)
        given.append((results, backward(*cotangents).params))
    assert_same_bits(*given)


def test_training_goes_on_from_loaded_parameters(tmp_path: Path):
    x, target = normal(4, 6, 3), normal(4, 6, 4, seed=1)
    model = rnn_of("gru", 3, 4)
    model(x)
    given: list[Any] = []
    for each in (model, again(model, tmp_path)):
        train = sn.value_and_grad(lambda y, wanted: np.sum((y - wanted) ** 2, axis=-1), each)
        value, gradients = train(x, target)
        params = {name: array - gradients.params[name] for name, array in each.params.items()}
        given.append((value, each.with_params(params)(x), train(x, target, params=params)[0]))
    assert_same_bits(*given)


def test_symbols_are_generated_as_before(tmp_path: Path):
    rnn = sn.RNN(lambda x, h, p: (np.tanh(x @ p + h), np.tanh(h + x @ p)), normal(6, 6), memory=6, inputs=6)
    both = rnn, again(rnn, tmp_path)
    written = [sn.generate(each, [0, 2, 5], max_steps=9, sampler=sn.sampling(1.0), seed=3) for each in both]
    assert_same_bits(*written)


def test_a_loaded_recurrence_is_part_of_other_models(tmp_path: Path):
    rnn = rnn_of("gru", 3, 4)
    rnn(X)
    loaded = again(rnn, tmp_path)

    def step(words: Any, h: Any, params: Any, inner: Any) -> Any:
        _, said = inner(words, initial="zeros")
        return h + said, h + said

    speakers = sn.Ragged.from_list([[normal(2, 3), normal(4, 3, seed=1)], [normal(1, 3, seed=2)]])
    outer = [
        sn.RNN(lambda x, h, p, inner=inner: step(x, h, p, inner), memory=4)(speakers)
        for inner in (rnn, loaded)
    ]
    assert_same_bits(*outer)
    graphs = [sn.Graph(lambda x, params, part=part: part(x)[0] * 2)(X) for part in (rnn, loaded)]
    assert_same_bits(*graphs)


def test_a_loaded_graph_is_part_of_other_models(tmp_path: Path):
    graph = graph_of_steps()
    graph(X)
    loaded = again(graph, tmp_path)
    outer = [sn.Graph(lambda x, params, part=part: part(x) * 2)(X) for part in (graph, loaded)]
    assert_same_bits(*outer)


def test_the_values_of_steps_are_those_at_its_ends(tmp_path: Path):
    rnn = rnn_of("gru", 3, 4)
    rnn(X)
    one, other = rnn.trace_steps(X), again(rnn, tmp_path).trace_steps(X)
    for name in ("inputs", "before", "after", "outputs"):
        assert_same_bits(one[name], other[name])


def test_engines_and_explanations_are_the_same(tmp_path: Path):
    rnn = rnn_of("gru", 3, 4)
    rnn(X)
    loaded = again(rnn, tmp_path)
    assert_same_bits(loaded(X, engine="interpret"), rnn(X, engine="interpret"))
    assert loaded.explain() == rnn.explain()
    assert loaded.draw() == rnn.draw()
    assert repr(loaded) == repr(rnn)


def test_parameters_stay_in_the_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPNET_CACHE", "0")  # with a cache small files are read whole, for its key
    new = {  # other numbers in each run, which no cache on disk has
        name: array + np.float32(np.random.default_rng().normal())
        for name, array in rnn_of("gru", 3, 4).params.items()
    }
    rnn = rnn_of("gru", 3, 4).with_params(new)
    rnn(X)
    loaded = again(rnn, tmp_path)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert os.fsencode(tmp_path / "m.stepnet") in maps.read_bytes()
    for array in leaves(loaded.params):
        assert not array.flags.owndata
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
    assert loaded.with_params(loaded.params).params["W"].base is loaded.params["W"].base


def test_a_file_is_one_of_safetensors(tmp_path: Path):
    stack = sn.Stack([rnn_of("gru", 3, 4), rnn_of("gru", 4, 4)])
    stack(X)
    stack.save(tmp_path / "m.stepnet")
    arrays = load_file(tmp_path / "m.stepnet")
    own = {f"{place}.{name}": array for place in (0, 1) for name, array in stack.params[place].items()}
    for name, array in own.items():
        assert_same_bits(arrays[name], array)


def test_nothing_of_the_users_files_is_stored(tmp_path: Path):
    rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=())
    rnn(np.ones((1, 2)))
    rnn.save(tmp_path / "m.stepnet")
    assert b"test_saved_models" not in (tmp_path / "m.stepnet").read_bytes()


LOW = (
    "bfloat16",
    "half_graph",
    "float16_inputs",
    "int8",
    "products_in_bfloat16",
    "quantized_stack",
    "quantized_graph",
)
"""Models that round to few bits, so that another processor may give the next number."""


@pytest.mark.parametrize(
    "file", sorted(GOLDEN.glob("*/*.stepnet")), ids=lambda file: f"{file.parent.name}/{file.stem}"
)
def test_files_of_all_versions_are_loaded(file: Path):
    """A golden file is never written anew: what a version has written, later ones read."""
    case, expected = CASES[file.stem](), np.load(file.with_suffix(".npz"))
    results = leaves(case.call(sn.load(file)))
    assert len(results) == len(expected.files)
    for result, name in zip(results, expected.files, strict=True):
        low = "bfloat16" if file.stem in LOW else None
        assert_close(values_of(result), expected[name], length=9, width=16, dtype=low)


LATER = {"integers": {"integers"}, "matrices_in_float16": {"matrices_in_float16", "graph_in_float16"}}
"""Models of each kind whose files have a version of their own, by one of them."""


def test_every_model_has_a_golden_file_of_this_version(tmp_path: Path):
    first = set(CASES).difference(*LATER.values())
    for name, names in {"gru": first, **LATER}.items():
        case = CASES[name]()
        case.call(case.model)
        again(case.model, tmp_path, name)
        folder = GOLDEN / f"version_{version_of(tmp_path / f'{name}.stepnet')}"
        assert {file.stem for file in folder.glob("*.stepnet")} == names


TRACED = """
import sys
import numpy as np

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "keras", "tensorflow", "jax"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Refused())
import stepnet as sn

x = np.load(sys.argv[1] + "/x.npy")
for name in sys.argv[2:]:
    result = sn.load(f"{sys.argv[1]}/{name}.stepnet")(x)
    np.save(f"{sys.argv[1]}/{name}.npy", result[0] if isinstance(result, tuple) else result)
assert "torch" not in sys.modules
"""


def test_models_of_pytorch_run_without_it(tmp_path: Path):
    torch = pytest.importorskip("torch")
    import stepnet.torch

    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True)
            self.head = torch.nn.Linear(8, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.rnn(x)[0]).softmax(-1)

    x = normal(2, 5, 3)
    cell = stepnet.torch.trace(torch.nn.LSTMCell(3, 4), (torch.zeros(1, 3), (torch.zeros(1, 4),) * 2))
    module = stepnet.torch.graph(Model().eval(), torch.zeros(2, 5, 3))
    np.save(tmp_path / "x.npy", x)
    expected = {"cell": cell(x)[0], "module": module(x)}
    for name, model in (("cell", cell), ("module", module)):
        model.save(tmp_path / f"{name}.stepnet")
    subprocess.run([sys.executable, "-c", TRACED, str(tmp_path), "cell", "module"], check=True, timeout=120)
    for name, outputs in expected.items():
        assert_same_bits(np.load(tmp_path / f"{name}.npy"), outputs)


def test_models_of_other_files_are_saved(tmp_path: Path):
    pytest.importorskip("onnx")
    import stepnet.onnx

    graph, x = graph_of_steps(), normal(2, 5, 3)
    graph(x)
    stepnet.onnx.save(graph, tmp_path / "m.onnx")
    read = sn.load(tmp_path / "m.onnx")
    loaded = again(read, tmp_path)
    assert_same_bits(loaded(x), read(x))
    stepnet.onnx.save(loaded, tmp_path / "again.onnx")
    assert_same_bits(sn.load(tmp_path / "again.onnx")(x), read(x))
    for name in ("both_rnn.tflite", "keras2_gru_before.h5", "keras2_bidirectional.h5"):
        model = sn.load(DATA / name)
        features = leaves(model.declaration.inputs)[0].shape[0]
        x = normal(2, 5, features)
        assert_same_bits(again(model, tmp_path)(x), model(x))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux is missing, where names of files are any bytes")
def test_a_model_of_a_file_whose_name_is_not_unicode_is_saved(tmp_path: Path):
    pytest.importorskip("onnx")
    import stepnet.onnx

    graph, x = graph_of_steps(), normal(2, 5, 3)
    graph(x)
    stepnet.onnx.save(graph, tmp_path / "m.onnx")
    path = (tmp_path / "m.onnx").rename(tmp_path / os.fsdecode(b"m\xe9.onnx"))
    model = sn.load(path)
    loaded = again(model, tmp_path, path.stem)
    assert_same_bits(loaded(x), model(x))
    assert str(loaded.explain()) == str(model.explain())


# ---- what is refused ---------------------------------------------------------------------------------------


def test_a_model_with_unknown_inputs_is_not_saved(tmp_path: Path):
    rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=())
    with pytest.raises(InputError, match="call the RNN once, or make it with inputs="):
        rnn.save(tmp_path / "m.stepnet")
    with pytest.raises(InputError, match="call the RNN once, or make it with inputs="):
        sn.Stack([rnn]).save(tmp_path / "m.stepnet")
    with pytest.raises(InputError, match="call the graph once, or make it with inputs="):
        sn.Graph(lambda x, params: x + 1).save(tmp_path / "m.stepnet")
    assert not list(tmp_path.iterdir())


def test_a_file_has_the_ending_of_models_and_is_replaced_by_force_alone(tmp_path: Path):
    rnn = rnn_of("gru", 3, 4)
    rnn(X)
    with pytest.raises(InputError, match=r"m\.bin: the file of a model ends in \.stepnet"):
        rnn.save(tmp_path / "m.bin")
    rnn.save(str(tmp_path / "m.stepnet"))
    before = (tmp_path / "m.stepnet").read_bytes()
    with pytest.raises(FileError, match="the file is there already"):
        rnn.save(tmp_path / "m.stepnet")
    with pytest.raises(InputError, match="force"):
        rnn.save(tmp_path / "m.stepnet", force="yes")  # type: ignore[arg-type]
    assert (tmp_path / "m.stepnet").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.stepnet"]


def test_a_loaded_model_takes_the_kind_of_inputs_that_was_saved(tmp_path: Path):
    rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=2)
    rnn(sequences([2], 2, dtype="float64"))
    rnn(sequences([2], 2))
    loaded = again(rnn, tmp_path)
    assert_same_bits(loaded(sequences([2], 2)), rnn(sequences([2], 2)))
    saved = r"m\.stepnet: the input `x` is rows f64\[2\], and the model was saved for rows f32\[2\]"
    with pytest.raises(InputError, match=saved):
        loaded(sequences([2], 2, dtype="float64"))
    with pytest.raises(InputError, match=r"features \[3\]; this recurrence was made for \[2\]"):
        loaded(sequences([2], 3))
    with pytest.raises(InputError, match=r"the static is array, and the model was saved for None"):
        loaded(sequences([2], 2), statics=normal(1, 2))


def test_a_loaded_model_says_how_inputs_with_lengths_of_their_own_are_declared(tmp_path: Path):
    graph = sn.Graph(lambda x, _: {"a": 2 * x["a"], "b": 3 * x["b"]})
    graph({"a": sequences([2], 2), "b": sequences([2], 2)})
    loaded = again(graph, tmp_path)
    with pytest.raises(InputError, match=r"are declared before it is saved, as sn\.Spec\("):
        loaded({"a": sequences([2], 2), "b": sequences([3], 2)})


def test_a_model_that_changed_is_not_saved(tmp_path: Path):
    torch = pytest.importorskip("torch")
    import stepnet.torch

    class Scaled(torch.nn.Module):
        scale = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.scale

    module = Scaled()
    graph = stepnet.torch.graph(module, torch.zeros(2, 5, 3))
    module.scale = 3.0
    with pytest.raises(InputError, match=r"`self\.scale` of Scaled has changed"):
        graph.save(tmp_path / "m.stepnet")


def test_a_key_that_json_has_not_is_refused(tmp_path: Path):
    rnn = sn.RNN(lambda x, h, p: (h + x * p[1.5], h), {1.5: np.ones(2)}, memory=2, inputs=2)
    with pytest.raises(InputError, match=r"a key of a stored model is a text or a whole number, not 1\.5"):
        rnn.save(tmp_path / "m.stepnet")
