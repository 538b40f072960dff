"""The dtypes of operands, by the rules of Keras: casts integers to floats, and refuses what it cannot.

    a * 0.5, mean of a, Dense of a    -->    a as float32, if it is of integers

A layer has a dtype policy, to which Keras casts floats. They are refused here if they have another dtype.

Sources: keras/src/backend/common/dtypes.py and layers/layer.py of 3.15.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.importers import pointwise
from stepnet.importers.placed import Placed, Unusable
from stepnet.layout.files.keras.names import BIDIRECTIONAL, INPUT, LAYERS, LOOKED_THROUGH, TIMED
from stepnet.layout.files.keras.nodes import Config, class_of, nodes_of, rows, table

KEEPING = {
    *LOOKED_THROUGH,
    TIMED,
    *("Embedding", "Flatten", "Permute", "Reshape"),
    *("ops.Any", "ops.ExpandDims", "ops.GetItem", "ops.LogicalOr", "ops.OnesLike", "ops.ZerosLike"),
    *("ops.Cast", "ops.LogicalAnd", "ops.LogicalNot", "ops.LogicalXor", "ops.Pad", "ops.Repeat"),
    *("ops.ConvertToTensor", "ops.Where"),
}
"""The rows that take each operand in its own dtype."""
JOINING = {
    *("Concatenate", "ops.Concatenate", "ops.Equal", "ops.Greater", "ops.GreaterEqual", "ops.Less"),
    *("ops.LessEqual", "ops.NotEqual", "ops.Stack"),
}
"""The rows that take operands of any one dtype, and integers beside floats as floats."""
WHOLE = {
    *("Add", "GlobalMaxPooling1D", "Masking", "Maximum", "Minimum", "Multiply", "Subtract"),
    *("ops.Absolute", "ops.Add", "ops.Max", "ops.Maximum", "ops.Min", "ops.Minimum", "ops.Multiply"),
    *("ops.Negative", "ops.Relu", "ops.Square", "ops.Subtract", "ops.Sum"),
}
"""The rows whose results are integers if all operands are; as floats, they take integers beside floats."""
TO_FLOAT = {
    *("Average", "GlobalAveragePooling1D", "ops.Divide", "ops.Exp", "ops.Log", "ops.Mean", "ops.Sigmoid"),
    *("ops.Sqrt", "ops.Tanh", "ops.TrueDivide"),
}
"""The rows that take integers as floats."""
TO_POLICY = {"Dense", "Normalization", "Rescaling", "RNN", BIDIRECTIONAL, *LAYERS}
"""The classes that take integers in the dtype of their policy."""
IN_2 = {"Dense", "Rescaling"}
"""The classes that took integers as floats in Keras 2."""
USUAL = {"int32", "int64"}
"""The dtypes of integers that are computed with."""


def policy_of(node: Config) -> str:
    """Returns the name of the dtype policy of a layer, or the dtype of an input; "" if none is stated.

    >>> policy_of({"config": {"dtype": {"class_name": "DTypePolicy", "config": {"name": "float64"}}}})
    'float64'
    """
    dtype = table(node.get("config")).get("dtype")
    return str((table(table(dtype).get("config")).get("name") if table(dtype) else dtype) or "")


def policies(node: Config) -> Iterator[str]:
    """Yields the names of the dtype policies of a layer and of the layers and cells in it."""
    config, stated = table(node.get("config")), policy_of(node)
    if stated:
        yield stated
    for part in [
        *(config.get(key) for key in ("layer", "backward_layer", "cell")),
        *rows(config.get("cells")),
    ]:
        yield from policies(table(part)) if part else ()


def has_doubles(model: Config) -> bool:
    """Tells whether a layer or input of a model, or of a model in it, states the dtype float64."""
    return any("float64" in policies(node) or has_doubles(node) for node in nodes_of(model))


def literal(value: float, beside: np.dtype[Any]) -> np.ndarray:
    """Returns a number in the arguments of a call as an array. It gets the dtype of the tensor `beside` it in
    the call if that is one of floats, or one of integers and the number is whole; else float32 or int32.
    Raises `ModelError` for one beyond that dtype.
    """
    if beside.kind == "f":
        return np.asarray(value, beside)
    if isinstance(value, float):
        return np.asarray(value, np.float32)
    dtype = beside if beside.kind in "iu" else np.dtype(np.int32)
    if not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise ModelError(f"it is called on the number {value}, which is none of {dtype}")
    return np.asarray(value, dtype)


def in_dtypes_of_keras(
    node: Config, row: str, operands: Sequence[Placed], version: str, model: Config
) -> list[Placed]:
    """Returns the operands of a layer cast to the dtypes in which Keras computes the layer; raises
    `ModelError` for combinations of dtypes that are not supported.

    node: the layer's configuration. row: the name of the layer's class or operation in the table of
    operators. version: the major version of Keras. model: the configuration of the whole model.
    """
    stated = set[str]() if row.startswith("ops.") else {*policies(node)}
    if len(stated) > 1:
        raise ModelError(f"its parts have the dtypes {' and '.join(sorted(stated))}: only one is supported")
    dtypes = {
        pointwise.dtype_of(x).name
        for x in operands
        if not isinstance(x.value, Unusable) and pointwise.dtype_of(x).kind != "O"
    }
    floats = {dtype for dtype in dtypes if dtype.startswith("float")}
    if len(floats | stated) > 1 and floats and row != "Embedding":
        own = f"it computes in {min(stated)}, and" if stated else "it"
        raise ModelError(f"{own} is called on {' and '.join(sorted(floats))}: the dtypes should agree")
    integers = dtypes - floats
    if not integers or row in KEEPING:
        return [*operands]
    said = f"it is called on {' and '.join(sorted(dtypes))}"
    if not floats and row in JOINING | WHOLE:
        if len(dtypes) > 1 or (row in WHOLE and not dtypes <= USUAL):
            raise ModelError(f"{said}, whose common dtype in Keras is not supported")
        return [*operands]
    target = min(floats | (stated if row in TO_POLICY else set()), default="float32")
    if row not in JOINING | WHOLE | TO_FLOAT | TO_POLICY or (version == "2" and row not in IN_2):
        raise ModelError(f"{said}, and is supported for floats of one dtype")
    if not integers <= USUAL and (row == "Average" or len(operands) > 2):
        raise ModelError(f"{said}, and is supported for floats, int32 and int64")
    if row not in TO_POLICY and has_doubles(model):
        raise ModelError(
            f"{said}, and the model has float64: which floats Keras makes of integers is unknown"
        )
    return [x if isinstance(x.value, Unusable) else pointwise.cast(x, target) for x in operands]


def cast_input(x: Placed, dtype: str) -> Placed:
    """Returns an input of the whole model in its dtype, to which Keras casts what a caller passes."""
    return x if pointwise.dtype_of(x).name == dtype else pointwise.cast(x, dtype)


def check_input(node: Config, feed: Placed) -> None:
    """Raises `ModelError` if an input of a model that is a layer of another model has another dtype than the
    value that it is called on. node: the configuration of the input. feed: the value that it is called on.
    """
    stated = policy_of(node)
    if class_of(node) == INPUT and stated and not isinstance(feed.value, Unusable):
        dtype = pointwise.dtype_of(feed).name
        if dtype != stated:
            raise ModelError(f"it is an input of {stated}, and is called on {dtype}: Keras casts it")
