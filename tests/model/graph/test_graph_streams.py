"""Streams of graphs: each step has the bits of a call of the sequences up to there."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from installed_onednn import missing_onednn
from random_models import WORDS, Layer, RandomModel, random_models
from tolerance import assert_close
from torch import nn
from zoo import normal, rnn_of, simple

import stepnet as sn
import stepnet.torch
from stepnet.compiler.values import leaves
from stepnet.errors import FileError, InputError, RefusedError

Array = np.ndarray
Model = Callable[..., Any]
GRU = rnn_of("gru", 5, 8)
LSTM = rnn_of("lstm", 8, 8, seed=1)
PARAMS = {"table": normal(20, 5), "W": normal(8, 3), "V": normal(4, 8)}


def two_layers(words: Any, params: Any) -> Any:
    """A table, two recurrences with a residual connection, and a softmax of each step."""
    h, _ = GRU(params["table"][words])
    above, _ = LSTM(h)
    return sn.softmax((h + above) @ params["W"])


def values_so_far(words: Any, params: Any) -> Any:
    """Outputs that a sequence has once: its last output, and a final memory."""
    h, final = GRU(params["table"][words])
    return {"last": sn.reduce(h, "last") @ params["W"], "final": np.tanh(final)}


def values_before_steps(words: Any, params: Any) -> Any:
    """Outputs that a sequence has once, and after them one with a value per step."""
    h, final = GRU(params["table"][words])
    return {"last": sn.reduce(2 * h, "last"), "final": np.tanh(final), "each": h}


def with_beginning(words: Any, params: Any, statics: Any) -> Any:
    """A recurrence that begins with a value of the statics."""
    return GRU(params["table"][words], initial=np.tanh(statics @ params["V"]))[0] @ params["W"]


def with_context(words: Any, params: Any, statics: Any) -> Any:
    """A value of the statics that each step reads."""
    x = params["table"][words]
    return GRU(x + sn.expand((statics @ params["V"])[:, :5], x))[0]


def side_by_side(words: Any, params: Any) -> Any:
    """Two recurrences that read the same input, and one without a product."""
    x = params["table"][words]
    total, _ = sn.RNN(lambda x, h, p: (0.5 * h + x, 0.5 * h + x), memory=5)(x)
    return np.concatenate([GRU(x)[0], total], axis=-1), sn.Stack([GRU, LSTM])(x)[0]


def without_recurrence(words: Any, params: Any) -> Any:
    """Operations within a step alone."""
    return sn.softmax(params["table"][words])


def joined_with_a_static(words: Any, params: Any, statics: Any) -> Any:
    """A concatenation with a static at each step that is an output too, so the call multiplies it whole."""
    x = np.concatenate([params["table"][words], params["table"][words] * 2], axis=-1)
    joined = np.concatenate([x, sn.expand(statics, x)], axis=-1)
    weights = {"W": normal(14, 8), "R": normal(8, 8)}
    return sn.RNN(simple, weights, memory=8)(joined)[0], joined


def summed_with_repeated_values(words: Any, params: Any, statics: Any) -> Any:
    """Sums of values of each step with values that are the same at every step."""
    x = params["table"][words]
    still = sn.expand((statics @ params["V"])[:, :5], x)
    sums = (x + still) + np.tanh(x) + sn.expand(params["W"][0, :1], x)
    return GRU(sums)[0] @ params["W"] + still[:, :3] + x[:, :3], sums


def from_negative_zero(words: Any, params: Any, statics: Any) -> Any:
    """A memory that begins with -0.0 and stays as it is."""
    hold = sn.RNN(lambda x, h, p: (h, h), memory=3)
    return 1 / hold(params["table"][words], initial=np.full_like(statics[:, :3], -0.0))[0]


MODELS: dict[str, tuple[Model, bool]] = {
    "two layers": (two_layers, False),
    "values so far": (values_so_far, False),
    "values before steps": (values_before_steps, False),
    "with beginning": (with_beginning, True),
    "with context": (with_context, True),
    "side by side": (side_by_side, False),
    "without recurrence": (without_recurrence, False),
    "joined with a static": (joined_with_a_static, True),
    "summed with repeated values": (summed_with_repeated_values, True),
    "from negative zero": (from_negative_zero, True),
}


def words_of(rows: int, steps: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 20, size=(rows, steps))


def assert_same(actual: Any, expected: Any) -> None:
    """Raises unless two structures of arrays have equal bits."""
    for one, other in zip(leaves(actual), leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def at(output: Array, step: int, of_steps: bool) -> Array:
    """The value of a call's output at a step; outputs that a sequence has once are values of the last one."""
    return output[:, step] if of_steps else output


def expected(graph: sn.Graph, words: Array, statics: Any, step: int) -> list[Array]:
    """The outputs of a call of the sequences up to a step, at this step."""
    outputs = leaves(graph(words[:, : step + 1], statics=statics))
    levels = [len(graph.net.type_of(number).extent) - 1 for number in graph.net.results]
    return [at(output, step, level == 1) for output, level in zip(outputs, levels, strict=True)]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("name", MODELS)
def test_steps_have_the_bits_of_a_call(name: str, rows: int) -> None:
    model, has_statics = MODELS[name]
    statics = normal(rows, 4) if has_statics else None
    graph, words = sn.Graph(model, PARAMS), words_of(rows, 5)
    stream = graph.stream(rows, statics=statics)
    for step in range(5):
        assert_same(leaves(stream.step(words[:, step])), expected(graph, words, statics, step))


def test_a_step_of_some_rows_leaves_the_others() -> None:
    graph, words = sn.Graph(two_layers, PARAMS), words_of(3, 4)
    whole, stream = graph(words), graph.stream(3)
    taken = [0, 0, 0]
    for rows in ([0, 1, 2], [2], [0, 2], [1], [2, 1, 0]):
        outputs = stream.step(np.array([words[row, taken[row]] for row in rows]), rows=rows)
        for row, output in zip(rows, outputs, strict=True):
            np.testing.assert_array_equal(output, whole[row, taken[row]])
            taken[row] += 1


def test_rows_come_and_go_with_their_statics_and_beginnings() -> None:
    graph, words, statics = sn.Graph(with_beginning, PARAMS), words_of(4, 3), normal(4, 4)
    whole = graph(words, statics=statics)
    stream = graph.stream(2, statics=statics[:2])
    assert_same(stream.step(words[:2, 0]), whole[:2, 0])
    stream.add(2, statics=statics[2:])
    np.testing.assert_array_equal(stream.step(words[2:, 0], rows=[2, 3]), whole[2:, 0])
    stream.drop(0)
    assert_same(stream.step(words[1:, 1]), whole[1:, 1])
    stream.reset(1)  # row 2 of the words, with the statics that it has
    assert_same(stream.step(words[2:3, 0], rows=[1]), whole[2:3, 0])
    stream.reset([0, 1], statics=statics[:2])  # other statics begin other memories
    np.testing.assert_array_equal(stream.step(words[:2, 0], rows=[0, 1]), whole[:2, 0])


def test_given_memories_replace_those_of_the_model() -> None:
    graph, words, statics = sn.Graph(with_beginning, PARAMS), words_of(2, 4), normal(2, 4)
    whole, first = graph(words, statics=statics), graph.stream(2, statics=statics)
    for step in range(2):
        first.step(words[:, step])
    second = graph.stream(2, initial=first.state, statics=statics)
    for step in (2, 3):
        assert_same(second.step(words[:, step]), whole[:, step])


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_a_call_goes_on_from_the_state_of_a_stream(name: str) -> None:
    model, has_statics = MODELS[name]
    statics = normal(3, 4) if has_statics else None
    graph, words = sn.Graph(model, PARAMS), words_of(3, 6)
    stream = graph.stream(3, statics=statics)
    for step in range(2):
        stream.step(words[:, step])
    rest = leaves(graph(words[:, 2:], initial=stream.state, statics=statics))
    levels = graph.program.levels
    for output, level, right in zip(rest, levels, leaves(graph(words, statics=statics)), strict=True):
        np.testing.assert_array_equal(output, right[:, 2:] if level else right)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_a_mask_of_all_steps_and_begun_change_nothing(name: str) -> None:
    model, has_statics = MODELS[name]
    statics = normal(3, 4) if has_statics else None
    graph, words = sn.Graph(model, PARAMS), words_of(3, 6)
    whole = graph(words, statics=statics)
    assert_same(graph(words, statics=statics, begun=2), whole)
    if 0 not in graph.program.levels:
        assert_same(graph(words, statics=statics, mask=np.ones((3, 6), bool)), whole)


def test_a_mask_leaves_steps_out_and_time_may_come_first() -> None:
    graph, words = sn.Graph(two_layers, PARAMS), words_of(2, 6)
    mask = np.array([[True, True, False, True, False, True]] * 2)
    masked = graph(words, mask=mask, masked="zero")
    np.testing.assert_array_equal(masked[:, mask[0]], graph(np.ascontiguousarray(words[:, mask[0]])))
    assert not masked[:, ~mask[0]].any()
    turned = graph(words.T.copy(), mask=mask.T.copy(), masked="zero", time_major=True)
    np.testing.assert_array_equal(turned.swapaxes(0, 1), masked)


def test_last_outputs_of_a_graph() -> None:
    graph, words = sn.Graph(two_layers, PARAMS), words_of(3, 5)
    whole, lengths = graph(words), np.array([5, 0, 2])
    for _ in range(4):
        np.testing.assert_array_equal(graph(words, last_only=True), whole[:, -1])
    last = graph(words, lengths=lengths, last_only=True)
    np.testing.assert_array_equal(last[[0, 2]], [whole[0, 4], whole[2, 1]])
    assert not last[1].any()
    rows = sn.Ragged.from_list([words[0], words[1, :0], words[2, :2]])
    np.testing.assert_array_equal(graph(rows, last_only=True), last)
    first = graph.stream(3)
    first.step(words[:, 0])
    rest = graph(words[:, 1:], initial=first.state, last_only=True)
    np.testing.assert_array_equal(rest, whole[:, -1])


def test_calls_step_by_step_that_are_refused() -> None:
    graph, words = sn.Graph(values_so_far, PARAMS), words_of(2, 3)
    state = np.zeros((2, 8), "f4")
    with pytest.raises(InputError, match=r"last is that of the last step, and sequence 1 has no steps"):
        graph(words, initial=state, lengths=[3, 0])
    with pytest.raises(InputError, match=r"last is a value that each sequence has once, and a mask says"):
        graph(words, mask=np.ones((2, 3), bool))
    with pytest.raises(InputError, match=r"initial is array, the memory `\w+` is \(array, \{h: array,"):
        sn.Graph(two_layers, PARAMS)(words, initial=state)
    mean = sn.Graph(lambda x, params: sn.reduce(GRU(params["table"][x])[0], "mean"), PARAMS)
    message = r"with begun= a graph runs step by step: this model has no stream: it takes the mean over all"
    with pytest.raises(InputError, match=message):
        mean(words, begun=1)
    top = sn.Graph(lambda x, params: sn.reduce(GRU(params["table"][x])[0], "max"), PARAMS)
    for run in (top, sn.vjp(top)):
        with pytest.raises(InputError, match="this model has no stream: it takes the max over all"):
            run(words, begun=1, lengths=[3, 0])
    with pytest.raises(InputError, match="masked is 'repeat' or 'zero'"):
        mean(words, masked="one")


def test_the_state_has_the_memories_in_the_order_of_the_recurrences() -> None:
    graph, words = sn.Graph(two_layers, PARAMS), words_of(2, 3)
    stream = graph.stream(2)
    for step in range(3):
        stream.step(words[:, step])
    h, final = GRU(PARAMS["table"][words])
    _, above = LSTM(h)
    assert_same(stream.state, (final, above))


def test_saved_rows_go_on(tmp_path: Path) -> None:
    graph, words = sn.Graph(two_layers, PARAMS), words_of(2, 4)
    whole, stream = graph(words), graph.stream(2)
    for step in range(2):
        stream.step(words[:, step])
    stream.save(tmp_path / "rows.safetensors")
    other = sn.Graph(two_layers, PARAMS).stream(0)
    other.load(tmp_path / "rows.safetensors")
    for step in (2, 3):
        assert_same(other.step(words[:, step]), whole[:, step])
    changed = sn.Graph(two_layers, PARAMS | {"W": PARAMS["W"] + 1}).stream(0)
    with pytest.raises(FileError, match="saved with other parameters"):
        changed.load(tmp_path / "rows.safetensors")


def test_saved_rows_are_of_the_captured_parameters_too(tmp_path: Path) -> None:
    def of(rnn: sn.RNN) -> sn.Graph:
        return sn.Graph(lambda x, params: rnn(x)[0], inputs=5)

    stream = of(GRU).stream(1)
    stream.step(normal(1, 5))
    stream.save(tmp_path / "rows.safetensors")
    of(rnn_of("gru", 5, 8)).stream(0).load(tmp_path / "rows.safetensors")
    with pytest.raises(FileError, match="saved with other parameters"):
        of(rnn_of("gru", 5, 8, seed=7)).stream(0).load(tmp_path / "rows.safetensors")


def test_a_quantized_graph_has_streams_of_its_precision() -> None:
    words = words_of(3, 6)
    graph = sn.quantize(sn.Graph(two_layers, PARAMS), [words_of(4, 9, seed=1)], "int8")
    whole, stream = graph(words), graph.stream(3)
    assert not np.array_equal(whole, sn.Graph(two_layers, PARAMS)(words))
    for step in range(6):
        assert_same(stream.step(words[:, step]), whole[:, step])


@pytest.mark.skipif(missing_onednn() is not None, reason=str(missing_onednn()))
def test_engines_that_split_a_call_are_refused() -> None:
    graph = sn.Graph(lambda x, params: GRU(x)[0])
    assert "onednn" in graph_parts(graph, ("onednn", "llvm"))
    with pytest.raises(InputError, match=r"parts of the model run on onednn.*: give engine='llvm' to calls"):
        graph.stream(2, engine=("onednn", "llvm")).step(normal(2, 5))
    with pytest.raises(RefusedError, match="a step of the whole model: no engine runs this net"):
        graph.stream(2, engine="onednn").step(normal(2, 5))


def graph_parts(graph: sn.Graph, engines: tuple[str, ...]) -> str:
    """The explanation of a graph for engines, after a call."""
    graph(normal(2, 3, 5), engine=engines)
    return graph.explain(engines)


# ---- random models -----------------------------------------------------------------------------------------


def reads_later(layer: Layer) -> bool:
    """True if a layer that is no recurrence reads later steps."""
    return layer.kind == "centred" or (layer.kind == "convolution" and layer.how == "same")


def has_stream(model: RandomModel) -> bool:
    """True if no output of a model needs a later step."""
    forward = all(layer.kind != "recurrence" or layer.how == "forward" for layer in model.layers)
    centred = any(reads_later(layer) for layer in model.layers)
    return forward and not centred and set(model.ends) <= {"last"}


def without_later_steps(model: RandomModel) -> RandomModel:
    """The model with its centred layers and directions changed to those that a stream has."""
    layers = tuple(
        (
            replace(layer, how="causal")
            if layer.kind == "convolution"
            else replace(layer, kind="activation", how="tanh")
        )
        if reads_later(layer)
        else layer
        for layer in model.layers
    )
    return replace(model, layers=layers, ends=("last",) if "last" in model.ends else (), steps=True)


@pytest.mark.long(examples=10)
@settings(max_examples=100)
@given(model=random_models(), rows=st.integers(1, 4), seed=st.integers(0, 9))
def test_random_models_stream_or_are_refused(model: RandomModel, rows: int, seed: int) -> None:
    model = without_later_steps(model) if seed < 7 else model
    words = np.random.default_rng(seed).integers(0, WORDS, size=(rows, 4))
    graph = sn.Graph(model, model.structure)
    stream = graph.stream(rows)
    if not has_stream(model):
        with pytest.raises(InputError, match="this model has no stream: "):
            stream.step(words[:, 0])
        return
    for step in range(4):
        assert_same(leaves(stream.step(words[:, step])), expected(graph, words, None, step))


# ---- models without streams --------------------------------------------------------------------------------


def mean_of_steps(x: Any, params: Any) -> Any:
    return sn.reduce(GRU(x)[0], "mean")


def backward(x: Any, params: Any) -> Any:
    return sn.Bidirectional(GRU, rnn_of("gru", 5, 8, reverse=True))(x)[0]


def final_at_each_step(x: Any, params: Any) -> Any:
    h, final = GRU(x)
    return h * sn.expand(final, h)


def final_as_beginning(x: Any, params: Any) -> Any:
    h, final = GRU(x)
    return rnn_of("gru", 8, 8)(h, initial=final)[0]


def attention(x: Any, params: Any) -> Any:
    h, _ = GRU(x)
    return sn.reduce(h * sn.softmax_over_steps(h), "sum")


REFUSED: dict[Model, str] = {
    mean_of_steps: "it takes the mean over all steps of a sequence",
    backward: "a recurrence of it begins at a sequence's last step",
    final_at_each_step: "its steps read a value of the whole sequence, as a final memory or a last output",
    final_as_beginning: "its steps read a value of the whole sequence, as a final memory or a last output",
    attention: "it takes the max over all steps of a sequence",
}


@pytest.mark.parametrize("model", REFUSED, ids=lambda model: model.__name__)
def test_a_model_that_needs_later_steps_is_refused(model: Model) -> None:
    stream = sn.Graph(model).stream(2)
    with pytest.raises(InputError, match=f"this model has no stream: {REFUSED[model]}"):
        stream.step(normal(2, 5))


def test_a_model_with_known_inputs_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="this model has no stream: it takes the mean over all steps"):
        sn.Graph(mean_of_steps, inputs=5).stream(2)


def test_a_refusal_names_the_line() -> None:
    with pytest.raises(InputError, match=r"test_graph_streams\.py:\d+: return sn\.reduce\(GRU\(x\)"):
        sn.Graph(mean_of_steps).stream(2).step(normal(2, 5))


def test_a_refused_recurrence_has_the_line_of_its_call() -> None:
    with pytest.raises(InputError, match=r"last step \(at .*test_graph_streams\.py:\d+: .*rnn_of\("):
        sn.Graph(backward, inputs=5).stream(2)


def test_a_refusal_without_a_line_names_the_node() -> None:
    """A model of which no part is in the user's files, and which is traced by a thread of its own."""
    space: dict[str, Any] = {"rnn": rnn_of("gru", 3, 4, reverse=True)}
    exec(compile("def model(x, params): return rnn(x)[0]", np.__file__, "exec"), space)
    with ThreadPoolExecutor(1) as pool:
        graph = pool.submit(partial(sn.Graph, space["model"], inputs=3)).result()
    with pytest.raises(InputError, match=r"last step \(at %\d+ = recur of gru\.W, gru\.R, gru\.b, gru\.d\);"):
        graph.stream(2)


def test_other_inputs_and_other_models_are_refused_in_the_words_for_a_graph(tmp_path: Path) -> None:
    gru = rnn_of("gru", 5, 4)
    graph = sn.Graph(lambda x, params: gru(x)[0], inputs=5)
    stream = graph.stream(2)
    with pytest.raises(InputError, match=r"input has features \[4\]; this graph was made for \[5\]"):
        stream.step(normal(2, 4))
    stream.step(normal(2, 5))
    stream.save(tmp_path / "rows.safetensors")
    other = sn.Graph(lambda x, params: 2 * gru(x)[0], inputs=5).stream(0)
    with pytest.raises(FileError, match="load it with the graph and the version"):
        other.load(tmp_path / "rows.safetensors")


def test_inner_sequences_have_no_stream_of_a_graph() -> None:
    graph = sn.Graph(lambda x, params: sn.reduce(x, "sum"))
    documents = sn.Ragged.from_list([normal(2, 5), normal(1, 5)])
    with pytest.raises(InputError, match="this model has no stream: it has inner sequences"):
        graph.stream(2).step(documents)


# ---- models of other frameworks ----------------------------------------------------------------------------


class Tagger(nn.Module):
    """An embedding, a normalisation, two layers of a GRU and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 5), nn.LayerNorm(5)
        self.gru, self.head = nn.GRU(5, 6, num_layers=2, batch_first=True), nn.Linear(6, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The scores of each step."""
        return self.head(torch.relu(self.gru(self.norm(self.table(words)))[0]))


class Scaled(nn.Module):
    """Reads the number of steps, which is that of each sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each step by the number of steps."""
        return x / x.size(1)


def test_a_module_that_reads_the_number_of_steps_has_no_stream() -> None:
    graph = stepnet.torch.graph(Scaled(), torch.ones(2, 3, 5))
    message = (
        r"this model has no stream: it reads the number of steps of a sequence "
        r"\(at .*test_graph_streams\.py:\d+: return x / x\.size\(1\)\)"
    )
    with pytest.raises(InputError, match=message):
        graph.stream(2)


class Reversed(nn.Module):
    """A layer of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 6, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of both directions."""
        return self.gru(x)[0]


def test_a_module_with_a_recurrence_from_the_last_step_has_no_stream() -> None:
    graph = stepnet.torch.graph(Reversed(), torch.ones(2, 3, 5))
    message = r"last step \(at .*test_graph_streams\.py:\d+: return self\.gru\(x\)\[0\]\n  in module `gru`"
    with pytest.raises(InputError, match=message):
        graph.stream(2)


def test_a_module_of_torch_has_a_stream() -> None:
    torch.manual_seed(0)
    module, words = Tagger().eval(), words_of(3, 5)
    graph = stepnet.torch.graph(module, torch.as_tensor(words))
    whole, stream = graph(words), graph.stream(3)
    with torch.no_grad():
        right = module(torch.as_tensor(words)).numpy()
    for step in range(5):
        output = stream.step(words[:, step])
        assert_same(output, whole[:, step])
        assert_close(output, right[:, step], 5, 6)


def test_a_graph_of_one_recurrence_may_return_its_input():
    graph = sn.Graph(lambda x, params: {"h": GRU(x)[0], "x": x})
    x = normal(2, 4, 5)
    expected, stream = graph(x), graph.stream(rows=2)
    for step in range(4):
        now = stream.step(x[:, step])
        for name in ("h", "x"):
            assert now[name].tobytes() == expected[name][:, step].tobytes()
    begun = graph(x, initial=np.zeros((2, 8), "f4"))
    assert begun["h"].tobytes() == expected["h"].tobytes()
    assert begun["x"].tobytes() == x.tobytes()
