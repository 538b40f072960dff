"""Formats nodes of a net as a person would write them: `W[:, :64]`, `%3 + %4`, `x @ [W | V]`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net, Node
from stepnet.compiler.net.text import INFIX, attribute_text
from stepnet.compiler.net.types import Type
from stepnet.compiler.values.dtypes import DTYPES, kind_of_dtype

OPERATORS = {**INFIX, "floor_divide": "//", "right_shift": ">>", "matmul": "@"}
"""The operators of Python."""
LISTED = 6


def expression(node: Node, operands: Sequence[str]) -> str:
    """Formats a node as an expression for an explanation, such as "x @ W". operands: the names of its inputs.
    Operations without a notation of their own look like calls, with their attributes.
    """
    attributes = node.attributes
    match node.operation:
        case name if name in OPERATORS:
            return f"{operands[0]} {OPERATORS[name]} {operands[1]}{encoding_text(node)}"
        case "negative":
            return f"-{operands[0]}"
        case "invert":
            return f"~{operands[0]}"
        case "power":
            return f"{operands[0]} ** {attributes['exponent']:g}"
        case "cast":
            return f"{DTYPES[attributes['dtype']].text}({operands[0]})"
        case "products":
            lefts: int = attributes["lefts"]
            return " + ".join(
                f"{left} @ [{' | '.join(operands[lefts + index :: lefts])}]"
                for index, left in enumerate(operands[:lefts])
            ) + encoding_text(node)
        case "recur":
            recur = node.recur
            sequences, begins, _ = recur.operands_by_kind(operands)
            order = "from the last step of" if recur.reverse else "over"
            return f"recurrence {order} {', '.join(sequences)}, begun with {', '.join(begins)}"
        case "concatenate":
            return f"[{' | '.join(operands)}]"
        case "gather":
            return f"{operands[0]}[{operands[1]}]"
        case "reduce":
            over = "its sequence" if node.type.extent else "all rows"
            return f"{attributes['how']} of {operands[0]} over {over}"
        case "contract":
            over = " over its sequence" if node.type.extent else ""
            return f"sum{over} of the outer products of {operands[0]} and {operands[1]}{encoding_text(node)}"
        case _:
            extra = [
                f"{key}={attribute_text(value)}"
                for key, value in node.pairs
                if not isinstance(value, Net | Type)
            ]
            return f"{node.operation}({', '.join([*operands, *extra])})"


def encoding_text(node: Node) -> str:
    """Formats the encoding of a product's weights, such as " in int8", to follow its text; "" for none."""
    weights = node.attributes.get("weights")
    return f" in {weights}" if weights else ""


def view(name: str, shape: tuple[int, ...], node: Node) -> str:
    """Formats a view of a value (a slice, a reshape and the like) as an expression, such as `x[:, :64]` or
    `x.T`.

    A broadcast has no text besides the name. name, shape: those of the value that is viewed. node: the node
    that is the view.
    """
    attributes = node.attributes
    match node.operation:
        case "slice":
            parts = [
                slice_text(*part, size=size) for part, size in zip(attributes["slices"], shape, strict=True)
            ]
            return f"{name}[{', '.join(parts)}]"
        case "take":
            subscripts = [
                *map(str, attributes["indices"][:LISTED]),
                *["..."][: len(attributes["indices"]) > LISTED],
            ]
            axes = [":"] * len(shape)
            axes[attributes["axis"]] = f"[{', '.join(subscripts)}]"
            return f"{name}[{', '.join(axes)}]"
        case "reshape":
            return f"{name}.reshape({', '.join(map(str, attributes['shape']))})"
        case "transpose":
            order = tuple(attributes["order"])
            return f"{name}.T" if order == (1, 0) else f"{name}.transpose({', '.join(map(str, order))})"
        case _:  # a broadcast shows only in the types
            return name


def slice_text(start: int, stop: int, step: int, size: int) -> str:
    """Formats one axis of a slice, such as `:64`, without numbers that are default. size: of the axis."""
    first = "" if start == (0 if step > 0 else size - 1) else str(start)
    last = "" if stop < 0 or (step > 0 and stop >= size) else str(stop)
    return f"{first}:{last}" + (f":{step}" if step != 1 else "")


def constant(value: "np.ndarray[Any, Any]") -> str:
    """Formats a constant array for an explanation: its number if it has only one, else its type."""
    if value.size == 1:
        return f"{value.item():g}" if kind_of_dtype(value.dtype) == "float" else str(value.item())
    return f"constant {DTYPES[value.dtype.name].text}{list(value.shape)}"


def types_text(types: Sequence[Type]) -> str:
    """Formats the element types of values: `f32[64]`, or `3 x f32[64]` if they are equal."""
    elements = [type_.element for type_ in types]
    if len(elements) > 1 and len(set(elements)) == 1:
        return f"{len(elements)} x {elements[0]}"
    return ", ".join(elements)
