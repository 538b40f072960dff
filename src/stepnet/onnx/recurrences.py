"""Writes recurrences as operators of ONNX: GRU, LSTM or RNN if the step computes one of these, else Scan."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Node, Recur
from stepnet.compiler.net.types import ROWS, Type
from stepnet.compiler.plan.recognise import Recognised, check, recognise
from stepnet.errors import ConversionError
from stepnet.layout.convert import convert
from stepnet.layout.files.model import Module
from stepnet.layout.files.onnx.modules import nodes_of
from stepnet.layout.files.onnx.node import OnnxNode
from stepnet.layout.files.onnx.write import attributes_of, checked
from stepnet.layout.records.stepnet import record
from stepnet.layout.semantics import Semantics
from stepnet.onnx.nets import check_extents, written
from stepnet.onnx.scope import BATCH, OnnxValue, Scope

Array = np.ndarray
FURTHER = {"p": "p[g:ifo h]", "P": "P[h y]"}
RUN = {"float32"}
"""The dtypes in which onnxruntime runs recurrent operators. In other dtypes it runs Scans."""


def recurrence(scope: Scope, node: Node, operands: Sequence[OnnxValue]) -> list[OnnxValue]:
    """Writes a recurrence of a net as ONNX's RNN, GRU or LSTM if its step computes such a cell in float32,
    else as a Scan.

    operands: the values of the node's operands. Returns its outputs and last memories.
    """
    cell = recognise(node)
    if isinstance(cell, Recognised) and (layer := layer_of(scope, cell, node, operands)) is not None:
        check(cell)
        return recurrent(scope, cell, layer, node, operands)
    return scan(scope, node, operands)


# ---- known cells -------------------------------------------------------------------------------------------


def layer_of(
    scope: Scope, recognised: Recognised, node: Node, operands: Sequence[OnnxValue]
) -> OnnxNode | None:
    """Finds ONNX's operator for a recognised cell, with its arrays; None if no operator computes the cell, if
    it has other outputs than h or no inputs, or for other dtypes than float32.

    node: the recurrence in the net. operands: its operands, constants for the weights.
    """
    by_kind = node.recur.operands_by_kind(operands)
    dtypes = {
        value.type.dtype
        for value in (*by_kind.memories, *(by_kind.sequences[p] for p in recognised.sequences))
    }
    if {*recognised.outputs} - {"h"} or not recognised.inputs or dtypes != RUN:
        return None
    statics = [np.zeros(0) if value.array is None else value.array for value in by_kind.others]
    semantics, arrays = as_gate_arrays(recognised, recognised.arrays(statics))
    other_arrays = {name: FURTHER[name] for name in arrays if name in FURTHER}
    layout_of_cell = record("recurrence", semantics.cell, semantics.changed(), other_arrays)
    try:
        converted = convert(arrays, layout_of_cell, f"onnx.{semantics.cell}")
    except ConversionError:  # such as for a projection: the equations are written instead
        return None
    fields, name = converted.report.open_fields, scope.fresh(semantics.cell)
    module = Module(
        name, (converted.report.target,), converted.arrays, semantics=fields, reverse=node.recur.reverse
    )
    return checked(nodes_of(module, Path(name))[0])


def as_gate_arrays(recognised: Recognised, arrays: dict[str, Array]) -> tuple[Semantics, dict[str, Array]]:
    """Converts a cell to the form that ONNX's operators need: with weights W of the inputs, the biases of
    both products, and arrays for all gates.

    Missing biases are zeros; a cell without W, whose inputs are projected already, gets columns of an
    identity. A minimal gated unit becomes a GRU whose reset and update gates are equal. A coupled LSTM (its
    input gate is 1 - f) gets arrays for all four gates, as a plain one. Returns (semantics, arrays by name).
    """
    none = np.zeros_like(arrays["R"][0])
    arrays = {"b": none, "d": none, **arrays}
    if recognised.projected is not None:
        arrays = {**arrays, "W": np.eye(recognised.inputs, dtype=arrays["R"].dtype)[:, recognised.projected]}
    if recognised.cell == "mgu":
        pairs = {name: np.split(array, 2, axis=-1) for name, array in arrays.items()}
        gru_arrays = {name: np.concatenate([f, f, n], axis=-1) for name, (f, n) in pairs.items()}
        return replace(recognised.semantics, cell="gru"), gru_arrays
    return replace(recognised.semantics, coupled=False), arrays


def recurrent(
    scope: Scope, recognised: Recognised, layer: OnnxNode, node: Node, operands: Sequence[OnnxValue]
) -> list[OnnxValue]:
    """Writes a recurrence as the operator RNN, GRU or LSTM; returns its outputs and last memories. An initial
    memory of zeros is left out, as ONNX's default.

    recognised: the cell that the step computes. layer: the operator with its arrays. node: the recurrence in
    the net. operands: the values of its operands.
    """
    by_kind = node.recur.operands_by_kind(operands)
    slots = {"h": recognised.h} | ({} if recognised.c is None else {"c": recognised.c})
    inputs = {"X": concatenated_features(scope, [by_kind.sequences[index] for index in recognised.sequences])}
    inputs |= {name: scope.name(array) for name, array in layer.arrays.items()}
    if scope.lengths:
        inputs["sequence_lens"] = scope.sequence_lens(by_kind.sequences[0].type.extent[-1])
    for slot, index in slots.items():
        initial = by_kind.memories[index]
        if initial.array is not None and not initial.array.any():
            continue
        inputs[f"initial_{slot}"] = scope.node("Unsqueeze", initial, np.array([0]))
    outputs = [scope.fresh(f"{layer.name}.{name}") for name in ("Y", *(f"Y_{slot}" for slot in slots))]
    attributes = attributes_of(layer.op, layer.attributes)
    scope.drawing.recurrent(layer.op, inputs, outputs, layer.name, **attributes)
    results = node.recur.results_by_kind(node.types)
    squeezed = [scope.node("Squeeze", outputs[0], np.array([1]))] * len(results.outputs)
    final = dict.fromkeys(range(len(results.memories)), "")
    for name, index in zip(outputs[1:], slots.values(), strict=True):
        final[index] = scope.node("Squeeze", name, np.array([0]))
    typed_results = [
        *zip(squeezed, results.outputs, strict=True),
        *zip(final.values(), results.memories, strict=True),
    ]
    return [
        as_net_type(scope, name, type_, by_kind.memories[recognised.h].type) for name, type_ in typed_results
    ]


def as_net_type(scope: Scope, name: str, type_: Type, memory: Type) -> OnnxValue:
    """Converts a result of a recurrent operator of ONNX, which is the value called `name` with one axis of
    features, to the features and dtype of `type_`, its type in the net.

    memory: the type of the memory, in whose dtype the operator computes.
    """
    vector = Type(type_.extent, (type_.size,), memory.dtype)
    return scope.typed(scope.shaped(OnnxValue(vector, name), type_.shape), type_.dtype)


def concatenated_features(scope: Scope, sequences: Sequence[OnnxValue]) -> str:
    """Writes sequences side by side as one vector per step, as ONNX's recurrent operators read them."""
    flat = [scope.shaped(value, (value.type.size,)) for value in sequences]
    return scope.name(flat[0]) if len(flat) == 1 else scope.node("Concat", *flat, axis=2)


# ---- all others --------------------------------------------------------------------------------------------


def scan(scope: Scope, node: Node, operands: Sequence[OnnxValue]) -> list[OnnxValue]:
    """Writes a recurrence of a net as a Scan, with its step as the body; returns its outputs and last
    memories. In a model with lengths, memories do not change in the padding after a sequence's end.

    operands: the values of the node's operands.
    """
    recur = node.recur
    body, by_kind = recur.body, recur.operands_by_kind(operands)
    check_extents(body, ROWS)
    axis = by_kind.sequences[0].type.extent[-1]
    steps = dict(zip(recur.sequences, by_kind.sequences, strict=True))
    before = [OnnxValue(body.type_of(number), scope.fresh("memory")) for number in recur.memories]
    inside = {number: OnnxValue(body.type_of(number), scope.fresh("step")) for number in steps}
    values = inside | dict(zip(recur.memories, before, strict=True))
    values |= dict(zip(recur.others, by_kind.others, strict=True))
    scanned = {value.name: (value.type, scope.name(steps[number])) for number, value in inside.items()}
    masked = {"is step": scope.fresh("is_step")} if scope.lengths else {}
    indexed = {"index": scope.fresh("index")} if any(n.operation == "index" for n in body.nodes) else {}
    extra = {name: (Type(ROWS, (), "bool"), scope.mask("steps", 0, axis)) for name in masked.values()}
    extra |= {name: (Type(ROWS, (), "int64"), step_indices(scope, recur, axis)) for name in indexed.values()}
    with scope.inside() as nodes:
        for number, node_ in enumerate(body.nodes):
            if node_.operation == "index":
                values[number] = OnnxValue(
                    node_.type, scope.node("Expand", indexed["index"], scope.size(BATCH))
                )
        step_results = recur.results_by_kind(written(scope, body, values))
        after = list(step_results.memories)
        if masked:
            after = [
                masked_memory(scope, masked["is step"], new, old)
                for new, old in zip(after, before, strict=True)
            ]
        results = [(value.type, scope.node("Identity", value)) for value in (*after, *step_results.outputs)]
    inputs = [(value.name, value.type) for value in before]
    inputs += [(name, type_) for name, (type_, _) in (scanned | extra).items()]
    graph = scope.drawing.onnx.helper.make_graph(
        nodes,
        scope.fresh("body"),
        [scope.declared(name, type_, [None]) for name, type_ in inputs],
        [scope.declared(name, type_, [None]) for type_, name in results],
    )
    return scan_node(scope, node, graph, by_kind.memories, [name for _, name in (scanned | extra).values()])


def scan_node(
    scope: Scope, node: Node, body: Any, memories: Sequence[OnnxValue], scanned: list[str]
) -> list[OnnxValue]:
    """Adds the node of a Scan for a recurrence; returns its outputs and last memories.

    node: the recurrence in the net. body: the ONNX graph of one step. memories: the memories before the first
    step. scanned: the names of the values of which each step reads one entry.
    """
    results = node.recur.results_by_kind(node.types)
    final = [scope.fresh("final") for _ in results.memories]
    outputs = [scope.fresh("scanned") for _ in results.outputs]
    direction = int(node.recur.reverse)
    scope.drawing.nodes.append(
        scope.drawing.onnx.helper.make_node(
            "Scan",
            [*map(scope.name, memories), *scanned],
            [*final, *outputs],
            scope.fresh("scan"),
            body=body,
            num_scan_inputs=len(scanned),
            scan_input_directions=[direction] * len(scanned),
            scan_output_directions=[direction] * len(outputs) or None,
        )
    )
    pairs = zip((*results.outputs, *results.memories), (*outputs, *final), strict=True)
    return [OnnxValue(type_, name) for type_, name in pairs]


def masked_memory(scope: Scope, is_step: str, new: OnnxValue, old: OnnxValue) -> OnnxValue:
    """Writes the memory after a step of a Scan: `new`, or `old` in the padding, where `is_step` is false."""
    rank = new.rank
    mask = scope.node("Unsqueeze", is_step, 1 + np.arange(rank)) if rank else is_step
    return scope.chosen(mask, new, old)


def step_indices(scope: Scope, recur: Recur, axis: str) -> str:
    """Adds nodes for the index of each step, [time, batch or 1], in the order in which a recurrence runs: the
    last step of a sequence has index 0 if it runs in reverse. Returns the name of the result.

    axis: the axis of the steps.
    """
    positions = scope.positions(axis)
    return scope.node("Sub", scope.last(axis), positions) if recur.reverse else positions
