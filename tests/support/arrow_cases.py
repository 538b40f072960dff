"""Models and columns that the tests of `stepnet.arrow` share."""

from typing import Any

import numpy as np
import pyarrow as pa
from zoo import rnn_of

import stepnet as sn

Array = np.ndarray
IN, H, TOKENS = 2, 3, 7
FIXED = pa.list_(pa.list_(pa.float32(), IN))
LOOSE = pa.list_(pa.list_(pa.float32()))


def of_words(x: Any, h: Any, params: Any) -> Any:
    """A step over words: what it remembers, and the sum of its words."""
    h = np.tanh(h @ params["R"] + sn.reduce(x, "sum")[..., None] * params["w"])
    return h, h


def classes(words: Any, params: Any) -> Any:
    """A model that gives something for each sequence, and something for each of its steps."""
    h, _ = RNN(params["table"][words])
    return {"class": sn.softmax(sn.reduce(h, "mean") @ params["W"]), "h": h}


RANDOM = np.random.default_rng(0)
RNN = rnn_of("gru", IN, H)
NESTED_PARAMS = {
    "R": RANDOM.normal(size=(H, H)).astype("float32"),
    "w": RANDOM.normal(size=H).astype("float32"),
}
GRAPH_PARAMS = {
    "table": RANDOM.normal(size=(TOKENS, IN)).astype("float32"),
    "W": RANDOM.normal(size=(H, 2)).astype("float32"),
}
MODELS: dict[str, Any] = {
    "recurrence": RNN,
    "layers": sn.Stack([sn.Bidirectional(RNN, rnn_of("gru", IN, H, reverse=True)), rnn_of("gru", 2 * H, H)]),
    "ends": sn.RNN(
        RNN.step, RNN.params, memory=H, inputs=IN, until=lambda output, memory: memory[..., 0] > 0.3
    ),
    "nested": sn.RNN(of_words, NESTED_PARAMS, memory=H, inputs=sn.Spec((), "float32", levels=1)),
    "graph": sn.Graph(classes, GRAPH_PARAMS, inputs=sn.Spec((), "int64")),
}
"""Models of steps with features, of inner sequences and of tokens; one whose sequences end early."""
ROWS: dict[str, list[Any]] = {
    "recurrence": [[[1, 2], [3, 4], [-1, 1]], None, [], [[0, 1]], [[2, 2]] * 9, [[5, 6], [7, 8]]],
    "nested": [[[1, 2, 3], []], [], None, [[4]], [[1], [2, 2], [3]], [[], [], [1]]],
    "graph": [[3, 1, 4], [1], None, [5, 6, 2], [], [6, 5, 3, 5]],
}
ROWS["layers"] = ROWS["ends"] = ROWS["recurrence"]
TYPES = {
    "recurrence": [
        FIXED,
        LOOSE,
        pa.large_list(pa.list_(pa.float64(), IN)),
        pa.list_(pa.large_list(pa.float16())),
    ],
    "layers": [FIXED],
    "ends": [FIXED],
    "nested": [LOOSE, pa.large_list(pa.large_list(pa.float32()))],
    "graph": [
        pa.list_(pa.int64()),
        pa.large_list(pa.uint8()),
        pa.list_(pa.dictionary(pa.int8(), pa.int32())),
    ],
}


def column_of(name: str, kind: Any, rows: list[Any] | None = None) -> Any:
    """A column of these rows; its tokens as a dictionary where the type says so."""
    values = ROWS[name] if rows is None else rows
    if isinstance(kind, pa.ListType) and isinstance(kind.value_type, pa.DictionaryType):
        plain = pa.array(values, pa.list_(kind.value_type.value_type))
        inside = plain.values.dictionary_encode().cast(kind.value_type)
        return pa.ListArray.from_arrays(plain.offsets, inside, mask=plain.is_null())
    if "halffloat" in str(kind):  # older versions make these of NumPy's numbers alone
        return pa.array(halves(values), kind)
    return pa.array(values, kind)


def halves(value: Any) -> Any:
    """The numbers in lists as float16."""
    if isinstance(value, list | np.ndarray):
        return [halves(each) for each in value]
    return None if value is None else np.float16(value)


def batch_of(name: str = "recurrence", kind: Any = FIXED, rows: list[Any] | None = None) -> Any:
    column = column_of(name, kind, rows)
    return pa.record_batch({"id": np.arange(len(column)), "frames": column})


def cut_into(batch: Any, sizes: list[int]) -> list[Any]:
    """The rows of a batch in batches of these sizes, in turn."""
    parts, start, turn = [], 0, 0
    while start < batch.num_rows:
        parts.append(batch.slice(start, sizes[turn % len(sizes)]))
        start, turn = start + sizes[turn % len(sizes)], turn + 1
    return parts
