"""`stepnet.arrow`: models over record batches from everywhere, in any cut, and what is refused."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from arrow_cases import FIXED, IN, LOOSE, MODELS, RNN, ROWS, TOKENS, TYPES, H, batch_of, cut_into
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tolerance import assert_close
from zoo import normal, rnn_of

import stepnet as sn
from stepnet import arrow, cells
from stepnet.arrow import predictor as module
from stepnet.arrow.blocks import cuts
from stepnet.arrow.runnable import CompiledModel, Runnable

Array = np.ndarray
CASES = [(name, kind) for name, kinds in TYPES.items() for kind in kinds]


def sequence_of(name: str, row: Any) -> Any:
    """One row as a sequence that a model is called with."""
    if name == "nested":
        return sn.Ragged.from_list([row or []], levels=2, dtype="float32", features=())
    spec = np.empty((0,), "int64") if name == "graph" else np.empty((0, IN), "float32")
    return sn.Ragged.from_list([np.asarray(row or spec, spec.dtype)], levels=1)


def alone(name: str, row: Any, output: str) -> Any:
    """The interpreter's result for one row alone, as Python objects."""
    model, sequences = MODELS[name], sequence_of(name, row)
    if name != "graph":
        outputs, _ = model(sequences, last_only=output == "last", engine="interpret")
        return outputs[0]
    made = model(sequences, engine="interpret")
    h = made["h"][0]
    return {"class": made["class"][0], "h": h if output == "outputs" else h[-1] if len(h) else np.zeros(H)}


def check(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            check(found[key], expected[key])
    else:
        assert_close(np.array(found, "float32").reshape(expected.shape), expected, 9, 2 * H + H)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("output", ["last", "outputs"])
@pytest.mark.parametrize(("name", "kind"), CASES, ids=str)
def test_each_row_is_what_its_sequence_gives_alone(name: str, kind: Any, output: str):
    results = arrow.predict([batch_of(name, kind)], MODELS[name], result=output).read_all()
    assert results.schema.names == ["id", output]
    assert results["id"].to_pylist() == [*range(len(ROWS[name]))]
    for row, found in zip(ROWS[name], results[output].to_pylist(), strict=True):
        assert (found is None) == (row is None)
        if row is not None:
            check(found, alone(name, row, output))


def test_the_lists_of_results_are_large_where_those_of_the_column_are():
    results = arrow.predict([batch_of(kind=pa.large_list(pa.list_(pa.float32(), IN)))], RNN, result="outputs")
    assert results.schema.field("outputs").type == pa.large_list(pa.list_(pa.float32(), H))
    results = arrow.predict([batch_of()], RNN, result="outputs")
    assert results.schema.field("outputs").type == pa.list_(pa.list_(pa.float32(), H))


PREDICTORS = {
    (name, output): arrow.Predictor(MODELS[name], result=output)
    for name in MODELS
    for output in ("last", "outputs")
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[Any]]:
    name = draw(st.sampled_from([*MODELS]))
    number = st.floats(-4, 4, width=16)
    step = {"nested": st.lists(number, max_size=3), "graph": st.integers(0, TOKENS - 1)}
    steps = st.lists(step.get(name, st.tuples(number, number)), max_size=6)
    return name, draw(st.lists(st.none() | steps, min_size=1, max_size=12))


@pytest.mark.long(examples=10)
@settings(max_examples=40)
@given(
    table=tables(),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    memory=st.integers(1, 3000),
    together=st.integers(1, 3000),
    output=st.sampled_from(["last", "outputs"]),
)
def test_bits_do_not_depend_on_the_cut(
    table: tuple[str, list[Any]], sizes: list[int], memory: int, together: int, output: str
):
    name, rows = table
    batch = batch_of(name, TYPES[name][0], rows)
    whole = PREDICTORS[name, output](batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "JOINED", together)
        cut = arrow.predict(cut_into(batch, sizes), MODELS[name], result=output, memory=memory).read_all()
    assert cut.equals(pa.Table.from_batches([whole]))  # NaN would differ, and there is none


@pytest.mark.parametrize("name", MODELS)
def test_batches_of_one_row_give_what_one_batch_gives(name: str):
    batch = batch_of(name, TYPES[name][0])
    parts = arrow.predict(cut_into(batch, [1]), MODELS[name], result="outputs").read_all()
    assert parts.equals(pa.Table.from_batches([PREDICTORS[name, "outputs"](batch)]))


# ---- batches from everywhere, as they are asked for


class Capsule:
    """A table of another library: nothing but Arrow's stream."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested)


TABLE = pa.Table.from_batches(cut_into(batch_of(), [2, 3]))
SOURCES: dict[str, Callable[[Path], Any]] = {
    "a table": lambda _: TABLE,
    "a batch": lambda _: batch_of(),
    "batches": lambda _: TABLE.to_batches(),
    "an iterator": lambda _: iter(TABLE.to_batches()),
    "tables": lambda _: [TABLE.slice(0, 3), TABLE.slice(3)],
    "a reader": lambda _: TABLE.to_reader(),
    "a dataset": lambda _: ds.dataset(TABLE),
    "a scanner": lambda _: ds.dataset(TABLE).scanner(batch_size=1),
    "files": lambda path: written(path),
    "a capsule": lambda _: Capsule(TABLE),
    "capsules": lambda _: [Capsule(TABLE.slice(0, 3)), Capsule(TABLE.slice(3))],
}


def written(folder: Path) -> Any:
    ds.write_dataset(TABLE, folder, format="arrow")
    return ds.dataset(folder, format="arrow")


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_batches_come_from_everywhere(source: Callable[[Path], Any], tmp_path: Path):
    results = arrow.predict(source(tmp_path), RNN)
    assert isinstance(results, pa.RecordBatchReader)
    assert (
        results.read_all().combine_chunks().equals(PREDICTORS["recurrence", "last"](TABLE).combine_chunks())
    )


@pytest.mark.parametrize("library", ["polars", "duckdb"])
def test_frames_and_relations_are_read_and_read_results(library: str):
    other = pytest.importorskip(library)
    frames = other.DataFrame(TABLE) if library == "polars" else other.connect().from_arrow(TABLE)
    results = arrow.predict(frames, RNN).read_all()
    assert results["last"].to_pylist() == arrow.predict(TABLE, RNN).read_all()["last"].to_pylist()
    again = other.DataFrame(results) if library == "polars" else other.connect().from_arrow(results)
    assert len(again) == len(TABLE)


def test_batches_are_asked_for_one_by_one():
    asked: list[int] = []

    def batches() -> Iterator[Any]:
        for number in range(4):
            asked.append(number)
            yield batch_of()

    results = arrow.predict(batches(), RNN, memory=1)
    assert asked == [0]  # its schema is that of the results
    next(iter(results))
    assert asked == [0]
    for _ in range(len(ROWS["recurrence"])):
        next(iter(results))
    assert asked == [0, 1]


def test_batches_come_out_as_they_came_in_but_for_large_ones():
    parts = [*cut_into(batch_of(), [1, 2]), batch_of(rows=[]), batch_of()]
    assert [part.num_rows for part in arrow.predict(parts, RNN)] == [part.num_rows for part in parts]
    assert [part.num_rows for part in arrow.predict(parts, RNN, memory=1)] == [1] * 6 + [0] + [1] * 6


def test_a_schema_without_batches_gives_a_schema_without_batches():
    results = arrow.predict(TABLE.slice(0, 0), RNN).read_all()
    assert (results.num_rows, results.schema.names) == (0, ["id", "last"])
    assert list(arrow.Predictor(RNN).over(iter([]))) == []


def test_columns_that_are_passed_on_share_the_memory_and_keep_their_order():
    batch = batch_of()
    (result,) = arrow.predict([batch], RNN, keep=["frames", "id"])
    assert result.schema.names == ["frames", "id", "last"]
    for name in ("id", "frames"):
        mine, its = result.column(name).buffers(), batch.column(name).buffers()
        assert [b and b.address for b in mine] == [b and b.address for b in its]
    assert arrow.predict([batch], RNN, keep=[]).schema.names == ["last"]


def test_sequences_are_read_where_they_lie_and_results_given_so():
    seen: list[Array] = []

    def run(x: sn.Ragged) -> sn.Ragged:
        seen.append(x.values)
        return x

    rows = [[[1, 2]], None, [[3, 4], [5, 6]], [[7, 8]]]
    batch = batch_of(rows=rows)
    predictor = arrow.Predictor(Runnable(sn.Spec(IN, "float32"), run, repr), result="outputs")
    result = predictor(batch.slice(1))
    own = batch.column("frames").values.values
    assert np.shares_memory(seen[-1], own.to_numpy())
    assert np.shares_memory(result.column("outputs").values.values.to_numpy(), own.to_numpy())
    assert result.column("outputs").to_pylist() == rows[1:]


def test_the_last_output_of_a_bidirectional_is_that_of_each_direction():
    both = sn.Bidirectional(RNN, rnn_of("gru", IN, H, reverse=True))
    graph = sn.Graph(lambda x, p: both(x)[0], {}, inputs=sn.Spec(IN, "float32"))
    table = pa.table({"frames": pa.array([[[1, 2], [3, 4], [-1, 1]]], LOOSE)})
    steps = np.array(arrow.predict(table, both, result="outputs").read_all()["outputs"].to_pylist()[0])
    found = {
        model: np.array(arrow.predict(table, model, result="last").read_all()["last"].to_pylist()[0])
        for model in (both, graph)
    }
    np.testing.assert_array_equal(found[both], [*steps[-1][:H], *steps[0][H:]])
    np.testing.assert_array_equal(found[graph], steps[-1])
    assert (steps[0][H:] != steps[-1][H:]).all()


def test_a_null_may_have_steps_behind_it():
    inside = pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.float32(), IN))
    column = pa.ListArray.from_arrays([0, 1, 3, 4], inside, mask=pa.array([False, True, False]))
    batch = pa.record_batch({"frames": column})
    results = arrow.Predictor(RNN)(batch).column("last").to_pylist()
    assert results[1] is None
    whole = arrow.Predictor(RNN)(batch_of(rows=[[[1, 2]], [[5, 6]]])).column("last").to_pylist()
    assert [results[0], results[2]] == whole


# ---- models, and workers


def test_a_model_of_unknown_inputs_takes_those_of_the_column():
    model = sn.RNN(RNN.step, RNN.params, memory=H)
    assert arrow.predict(TABLE, model).read_all().equals(arrow.predict(TABLE, RNN).read_all())


def test_a_model_is_read_from_a_file(tmp_path: Path):
    torch, path = pytest.importorskip("torch"), tmp_path / "gru.safetensors"
    layer = torch.nn.GRU(IN, H)
    save_file({name: value.detach().numpy() for name, value in layer.named_parameters()}, path)
    rows = [row for row in ROWS["recurrence"] if row]
    found = arrow.predict([batch_of(rows=rows)], path, result="outputs", recurrent_only=True)
    found = found.read_all()["outputs"].to_pylist()
    for row, outputs in zip(rows, found, strict=True):
        expected = layer(torch.tensor(row, dtype=torch.float32))[0].detach().numpy()
        assert_close(np.array(outputs, "float32"), expected, len(row), IN + H)


@pytest.mark.parametrize("name", ["recurrence", "layers", "nested", "graph"])
def test_a_predictor_can_be_pickled(name: str):
    batch = batch_of(name, TYPES[name][0])
    predictor = arrow.Predictor(MODELS[name], result="outputs", keep=[], memory=500)
    assert pickle.loads(pickle.dumps(predictor))(batch).equals(predictor(batch))


def test_a_model_is_compiled_once(monkeypatch: pytest.MonkeyPatch):
    compiled: list[Any] = []
    right = CompiledModel.of
    monkeypatch.setattr(CompiledModel, "of", lambda *arguments: compiled.append(1) or right(*arguments))
    predictor = arrow.Predictor(RNN)
    for _ in range(3):
        predictor(batch_of())
    list(predictor.over([batch_of(), batch_of()]))
    assert len(compiled) == 1


def test_a_table_gives_a_table():
    results = arrow.predict(TABLE, RNN).read_all()
    assert arrow.Predictor(RNN)(TABLE).equals(results)
    assert pa.Table.from_batches(arrow.Predictor(RNN).over(TABLE)).equals(results)


# ---- memory


@pytest.mark.parametrize("kind", [FIXED, LOOSE, pa.list_(pa.list_(pa.float64(), IN))])
def test_no_call_takes_more_than_is_said(kind: Any):
    calls: list[int] = []
    cast = kind.value_type.value_type != pa.float32()

    def run(x: sn.Ragged) -> sn.Ragged:
        outputs: sn.Ragged = RNN(x)[0]
        calls.append(x.values.nbytes * (3 if cast else 1) + outputs.values.nbytes)
        return outputs

    lengths = np.random.default_rng(2).integers(0, 40, 300)
    batch = batch_of(kind=kind, rows=[[[1.0, 2.0]] * length for length in lengths])
    predictor = arrow.Predictor(Runnable(sn.Spec(IN, "float32"), run, repr), result="outputs", memory=10_000)
    assert sum(part.num_rows for part in predictor.over([batch, batch])) == 600
    assert max(calls) <= 10_000
    assert sum(calls) / 10_000 > len(calls) / 3


def test_what_lies_between_layers_is_counted():
    wide = sn.Stack([cells.rnn("gru", cells.CELLS["gru"].parameters(IN, 50)), rnn_of("gru", 50, H)])
    sizes = [
        CompiledModel.of(Runnable.of(model, "outputs"), sn.Spec(IN, "float32")).level_bytes[1]
        for model in (RNN, wide)
    ]
    assert sizes == [4 * H, 4 * (50 + H)]


def test_cuts_are_the_fewest():
    sizes = np.cumsum([0, *np.random.default_rng(1).integers(0, 9, 200)])
    for most in (1, 8, 20, 10_000):
        made = list(cuts(sizes, most))
        assert [0, *(stop for _, stop in made)] == [*(start for start, _ in made), 200]
        for start, stop in made:
            assert stop == start + 1 or sizes[stop] - sizes[start] <= most
            assert stop == 200 or sizes[stop + 1] - sizes[start] > most


def test_the_memory_of_a_call_counts_the_steps_that_there_are_more_of():
    def model(x: Any, params: Any) -> Any:
        return sn.conv_transpose1d(np.tanh(sn.conv_transpose1d(x, params, stride=3)), params, stride=3)

    graph = sn.Graph(model, normal(2, 2, 3), inputs=2)
    found = [0, 0]
    for level, size in graph.bytes_between(graph.declaration.typed.inputs, False, "auto"):
        found[level] += size
    # 3 and 9 steps for each, of 2 numbers, in windows of 3, of 4 bytes; 8 of the 9 results are counted here.
    assert found[1] >= (3 + 3 * 3 + 8) * 2 * 4


def test_pairs_of_steps_count_in_the_memory_of_a_call():
    """The interpreter stores a score and a weight for each pair and head of attention; llvm does not."""
    model = sn.Graph(lambda x, p: sn.attention(x, x, x, heads=2), inputs=IN)
    for engine, held in (("llvm", 0), ("interpret", 2 * 2 * 4)):
        compiled = CompiledModel.of(Runnable.of(model, "outputs", engine), sn.Spec(IN, "float32"))
        assert compiled.pair_bytes == held
    rows = [normal(length, IN) for length in (20, 3, 2)]
    batch = pa.record_batch({"frames": [row.tolist() for row in rows]})
    batch = batch.cast(pa.schema({"frames": pa.list_(pa.list_(pa.float32(), IN))}))
    parts = list(arrow.predict([batch], model, result="outputs", memory=3000, engine="interpret"))
    assert [part.num_rows for part in parts] == [1, 2]
    found = [np.array(row) for part in parts for row in part.column("outputs").to_pylist()]
    for one, other in zip(found, model(sn.Ragged.from_list(rows)).to_list(), strict=True):
        assert_close(one.astype("float32"), other)
