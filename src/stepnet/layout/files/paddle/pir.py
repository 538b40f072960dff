"""Reads a .json program: PIR, the representation of PaddlePaddle 3, as it is serialized.

    {"#": "1.add", "A": [attributes], "I": [{"%": 3}, {"%": 4}], "O": [{"%": 5, "TT": type}]}

Operations have positional inputs. A table gives the names of slots, operations and attributes in older
programs. A list of values, which PIR builds by `combine` and takes apart by `split`, becomes a slot of
several values.

Source: paddle/fluid/pir/serialize_deserialize and phi/ops/yaml/op_compat.yaml of PaddlePaddle 3.3.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, StepnetError
from stepnet.layout.files import jsons
from stepnet.layout.files.paddle.program import PaddleOperation, PaddleProgram, Variable
from stepnet.layout.files.store import Store

TYPES: Mapping[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i8": np.dtype(np.int8),
    "ui8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}
KEEP = {"keepdim": "keep_dim"}
ONE, TWO = ("X",), ("X", "Y")


@dataclass(frozen=True)
class Older:
    """The form that an operation of PIR has in older Paddle programs.

    type: its name.
    inputs, outputs: its slots, in PIR's order.
    attributes: the names of its attributes, by PIR's names.
    """

    type: str
    inputs: tuple[str, ...] = TWO
    outputs: tuple[str, ...] = ("Out",)
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


def reduction(name: str) -> Older:
    """Describes an operation of PIR, the representation of Paddle 3, that reduces over axes, as older Paddle
    programs write it: with the name `name`, such as "reduce_sum", and their names of its inputs and
    attributes.
    """
    return Older(name, ("X", "DimTensor"), attributes=KEEP)


OLDER: Mapping[str, Older] = {
    "add": Older("elementwise_add"),
    "assign_value_": Older("assign_value", ("Replaced",)),
    "argmax": Older("arg_max", ("X", "AxisTensor")),
    **dict.fromkeys(
        ("batch_norm", "batch_norm_"),
        Older("batch_norm", ("X", "Mean", "Variance", "Scale", "Bias"), ("Y", "MeanOut", "VarianceOut")),
    ),
    **{
        name: Older(name, ("Input", "Filter", "Bias"), ("Output",)) for name in ("conv2d", "depthwise_conv2d")
    },
    **{
        name: Older(name, ("Input", "Filter", "OutputSize", "Bias"), ("Output",))
        for name in ("conv2d_transpose", "depthwise_conv2d_transpose")
    },
    "concat": Older("concat", ("X", "AxisTensor")),
    "clip": Older("clip", ("X", "Min", "Max")),
    "divide": Older("elementwise_div"),
    "dropout": Older("dropout", ("X", "Seed", "P")),
    "elementwise_pow": Older("elementwise_pow"),
    "embedding": Older("lookup_table_v2", ("Ids", "W")),
    "expand": Older("expand_v2", ("X", "Shape")),
    "full": Older("fill_constant"),
    "full_batch_size_like": Older("fill_constant_batch_size_like", ("Input",)),
    "full_with_tensor": Older("fill_constant", ("ValueTensor", "ShapeTensor")),
    "group_norm": Older("group_norm", ("X", "Scale", "Bias"), ("Y", "Mean", "Variance")),
    "hardtanh": Older("brelu"),
    "hardsigmoid": Older("hard_sigmoid"),
    "hardswish": Older("hard_swish"),
    "layer_norm": Older("layer_norm", ("X", "Scale", "Bias"), ("Y", "Mean", "Variance")),
    "leaky_relu": Older("leaky_relu", attributes={"negative_slope": "alpha"}),
    "matmul": Older("matmul_v2", attributes={"transpose_x": "trans_x", "transpose_y": "trans_y"}),
    "max": reduction("reduce_max"),
    "maximum": Older("elementwise_max"),
    "mean": reduction("reduce_mean"),
    "min": reduction("reduce_min"),
    "minimum": Older("elementwise_min"),
    "multiply": Older("elementwise_mul"),
    "pad3d": Older("pad3d", ("X", "Paddings")),
    "pool2d": Older("pool2d", ("X", "KSize")),
    "pow": Older("pow", attributes={"y": "factor"}),
    "prelu": Older("prelu", ("X", "Alpha")),
    "reshape": Older("reshape2", ("X", "Shape")),
    "rnn": Older(
        "rnn",
        ("Input", "PreState", "WeightList", "SequenceLength"),
        ("Out", "DropoutState", "State", "Reserve"),
    ),
    "scale": Older("scale", ("X", "ScaleTensor")),
    "shape": Older("shape", ("Input",)),
    "shape64": Older("shape", ("Input",)),
    "slice": Older("slice", ("Input", "StartsTensor", "EndsTensor")),
    "split": Older("split", ("X", "SectionsTensor", "AxisTensor")),
    "split_with_num": Older("split", ("X", "AxisTensor")),
    "squeeze": Older("squeeze2", ("X", "AxesTensor"), attributes={"axis": "axes"}),
    "stack": Older("stack", ONE, ("Y",)),
    "subtract": Older("elementwise_sub"),
    "sum": reduction("reduce_sum"),
    "transpose": Older("transpose2", ONE, attributes={"perm": "axis"}),
    "unsqueeze": Older("unsqueeze2", ("X", "AxesTensor")),
    "where": Older("where", ("Condition", "X", "Y")),
}
"""The older operation that an operation of PIR is; others have the same name, and inputs X and Y."""


def read(data: bytes, path: str, store: Store) -> PaddleProgram:
    """Reads the program in a .json file of PIR; raises `FileError`, without the path, for another text. path:
    the path of the file, for messages about the program. store: the limit on memory.
    """
    value = jsons.parsed(data, "program", store)
    try:
        if value["base_code"]["magic"] != "pir":
            raise FileError("this is not a program of Paddle (its magic is not pir)")
        blocks = [block for region in value["program"]["regions"] for block in region["blocks"]]
        if len(blocks) != 1:
            raise FileError(f"its program has {len(blocks)} blocks, and stepnet reads programs of one block")
        return program(blocks[0]["ops"], path)
    except StepnetError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise FileError(
            f"this is not a complete program of Paddle ({type(error).__name__}: {error})"
        ) from None


@dataclass
class PirReading:
    """The part of a program that has been read.

    inputs, operations, outputs, parameters: those of the `PaddleProgram` to make.
    lists: the names of the values in each list of values, by the list's name.
    names: the program's names of values, by their numbers in the file.
    """

    inputs: list[Variable] = field(default_factory=list[Variable])
    operations: list[PaddleOperation] = field(default_factory=list[PaddleOperation])
    outputs: dict[str, str] = field(default_factory=dict[str, str])
    parameters: list[Variable] = field(default_factory=list[Variable])
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    names: dict[str, str] = field(default_factory=dict[str, str])

    def values(self, number: Any) -> tuple[str, ...]:
        """Returns the names of the values for which a number in a PIR file stands: one name or, for a list,
        one for each element; () for 0, which is no value.
        """
        name = str(int(number))
        if name == "0":
            return ()
        return self.lists.get(name, (self.names.get(name, name),))


def program(operations: Sequence[Any], path: str) -> PaddleProgram:
    """Converts the operations of a block of PIR, as in its JSON, to a Paddle program: its inputs, operations,
    outputs and parameters. path: of the file, for messages.
    """
    reading = PirReading()
    for index, node in enumerate(operations):
        add(reading, index, node)
    parameters = {variable.name: variable for variable in reading.parameters}
    saved = tuple(parameters[name] for name in sorted(parameters))
    return PaddleProgram(path, tuple(reading.inputs), tuple(reading.operations), reading.outputs, saved)


def add(reading: PirReading, index: int, node: Any) -> None:
    """Adds one operation of a PIR file to the program that is being read (`reading`). Operations that declare
    a parameter, an input or an output are added as such, and not as operations; those that join values to a
    list or split a list add only names.

    index: the number of the operation. node: its JSON.
    """
    kind = str(node["#"]).rpartition(".")[2]
    if kind == "p":
        declared = variable(str(node["A"][3]), node["O"]["TT"])
        if node["OA"][0]:  # persistable: the file of parameters contains it
            reading.parameters.append(declared)
        reading.names[str(int(node["O"]["%"]))] = declared.name
        return
    attributes = {str(pair["N"]): attribute(pair["AT"]) for pair in node["A"]}
    inputs = [reading.values(value["%"]) for value in node["I"]]
    results = [str(int(value["%"])) for value in node["O"]]
    if kind == "data":
        declared = variable(str(attributes["name"]), node["O"][0]["TT"])
        reading.inputs.append(declared)
        reading.names[results[0]] = declared.name
    elif kind == "fetch":
        reading.outputs[str(attributes["name"])] = inputs[0][0]
    elif kind == "combine":
        reading.lists[results[0]] = tuple(name for names in inputs for name in names)
    elif node["#"] == "0.split":  # the inverse of combine
        reading.names.update(zip(results, inputs[0], strict=True))
    else:
        outputs = [names_of_result(reading, value) for value in node["O"]]
        where = f"operation {index} ({kind}){in_layer(attributes)}"
        reading.operations.append(as_older(kind, inputs, outputs, attributes, where))


def in_layer(attributes: Mapping[str, Any]) -> str:
    """Returns " of NAME" for messages, where NAME is the user's layer that a Paddle operation belongs to, or
    "" if it is unknown. attributes: the attributes of the operation.
    """
    name = str(attributes.get("struct_name", "")).strip("/")
    return f" of {name}" if name else ""


def names_of_result(reading: PirReading, value: Any) -> tuple[str, ...]:
    """Returns the names of a PIR operation's result: one or, for a list of values, one for each, which
    `reading` records. value: the result in the file's JSON.
    """
    name, kind = str(int(value["%"])), value["TT"]
    if str(kind["#"]).rpartition("_")[2] == "vec":
        reading.lists[name] = tuple(f"{name}[{index}]" for index in range(len(kind["D"])))
    return reading.values(name)


def as_older(
    kind: str,
    inputs: Sequence[tuple[str, ...]],
    outputs: Sequence[tuple[str, ...]],
    attributes: Mapping[str, Any],
    index: str,
) -> PaddleOperation:
    """Converts an operation of PIR, Paddle's newer form of programs, to the older form: inputs and outputs by
    slot, and the older names of the operation and of its attributes.

    kind: the name of the operation in PIR. inputs, outputs: for each of them, the names of its values. index:
    the position of the operation, for messages.
    """
    older = OLDER.get(kind, Older(kind))
    renamed = {older.attributes.get(name, name): value for name, value in attributes.items()}
    slots = dict(zip(older.inputs, inputs, strict=False))
    more = () if kind in OLDER else (f"Out{place}" for place in range(2, len(outputs) + 1))
    results = dict(zip((*older.outputs, *more), outputs, strict=False))
    return PaddleOperation(older.type, slots, results, renamed, index)


def variable(name: str, kind: Any) -> Variable:
    """Describes an input or parameter called `name` of a Paddle program: shape, dtype and number of levels of
    sequences (LoD). Raises `FileError` if it has no numbers. kind: its type in PIR's JSON.
    """
    element, sizes, _, levels, *_ = kind["D"]
    text = str(element["#"]).rpartition("_")[2]
    if text not in TYPES:
        raise FileError(f"{name!r} is of Paddle's type {text}, which is no number")
    return Variable(name, tuple(max(int(size), 0) for size in sizes), TYPES[text], len(levels))


def attribute(value: Any) -> Any:
    """Returns the Python value of an operation's attribute in PIR's JSON: a number, a text, or a list."""
    data = value.get("D")
    if str(value["#"]).endswith("_array"):
        return [attribute(element) for element in data]
    return data
