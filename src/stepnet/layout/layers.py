"""Weights of any layout as layers that run: an `RNN`, a `Bidirectional`, or a `Stack` of one of these."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.cells import gated as cells
from stepnet.compiler.values.arguments import dtype_name, flag
from stepnet.errors import LayoutError
from stepnet.layout.arguments import as_arrays, as_semantics, one_dtype, size_mapping
from stepnet.layout.equations import step_of
from stepnet.layout.filling import read
from stepnet.layout.places import Array, ParameterBlock, regions
from stepnet.layout.record import Record
from stepnet.layout.registry import record as record_of
from stepnet.layout.semantics import Semantics
from stepnet.layout.sizes import Sizes
from stepnet.layout.solve import sizes_of
from stepnet.model.compose import Bidirectional, Layer, Stack
from stepnet.model.merge import checked_merge
from stepnet.model.recurrence import RNN

Blocks = dict[str, dict[str, Array]]  # of a direction of a layer: by parameter, then by gate


def layers(
    arrays: Mapping[str, Any],
    layout: str | Record,
    *,
    sizes: Mapping[str, int] | Sizes | None = None,
    semantics: Mapping[str, Any] | None = None,
    dtype: Any = None,
    reverse: bool = False,
    merge: str = "concat",
) -> Layer:
    """Builds the layers of weights in any layout, ready to run: an `RNN`, a `Bidirectional` or a `Stack`.

    The weights are copied. A function that is one of stepnet's named cells runs as that cell, any other by
    its equations.

    Args:
        arrays: Arrays or tensors by the framework's own names; see `convert`.
        layout: The name of their layout, such as "keras.gru".
        sizes: Sizes that the shapes leave open; see `convert`.
        semantics: The semantics that the layout leaves open, by field of `Semantics`.
        dtype: The dtype to run in; by default the dtype of the arrays, and float32 for half precision.
        reverse: Whether weights of one direction run from each sequence's last step.
        merge: How the outputs of two directions are merged; see `Bidirectional`.

    Raises:
        LayoutError: For arrays that do not fit, and for sizes and semantics that stay unknown.

    >>> weights = {"kernel": np.ones((2, 9)), "recurrent_kernel": np.ones((3, 9)), "bias": np.ones((2, 9))}
    >>> layers(weights, "keras.gru")
    RNN(gru, ...)
    """
    record = record_of(layout)
    weights = as_arrays(arrays)
    solved = sizes_of(record, {name: array.shape for name, array in weights.items()}, size_mapping(sizes))
    meaning = record.settled(as_semantics(semantics))
    source_dtype = one_dtype(weights)
    run_dtype = np.dtype(
        dtype_name(dtype, "the layers")
        if dtype is not None
        else source_dtype
        if source_dtype.itemsize >= 4
        else np.float32
    )
    if run_dtype.kind != "f":
        raise LayoutError(f"layers run in a floating dtype, not {run_dtype}")
    reverse = flag(reverse, "reverse")
    checked_merge(merge)
    grid = blocks(record, solved, weights, run_dtype)
    if reverse and solved.directions > 1:
        raise LayoutError("reverse is for layers of one direction")
    rows = [
        [
            direction_rnn(meaning, grid[layer, direction], solved, bool(direction) or reverse)
            for direction in range(solved.directions)
        ]
        for layer in range(solved.layers)
    ]
    stack: list[Layer] = [row[0] if len(row) == 1 else Bidirectional(row[0], row[1], merge) for row in rows]
    return stack[0] if len(stack) == 1 else Stack(stack)


def blocks(
    record: Record, sizes: Sizes, arrays: Mapping[str, Array], dtype: np.dtype[Any]
) -> dict[tuple[int, int], Blocks]:
    """Copies the weights of all layers out of the arrays of a layout (`record`), in `dtype`: by (layer,
    direction), then by parameter and gate. Matrices are [inputs, hidden], as right factors of products.
    Arrays of the layout that are not in `arrays` (optional biases) are left out.
    """
    grid: dict[tuple[int, int], Blocks] = {}
    for region in regions(record, sizes):
        block: ParameterBlock = region.block
        if region.array in arrays:
            with np.errstate(invalid="ignore"):  # NumPy warns of a signaling NaN
                value = np.array(read(region, arrays).T, dtype, order="C")
            of_direction = grid.setdefault((block.layer, block.direction), {})
            of_direction.setdefault(block.parameter, {})[block.gate] = value
    return grid


def direction_rnn(semantics: Semantics, parameters: Blocks, sizes: Sizes, reverse: bool) -> RNN:
    """Builds the recurrence of one direction of a layer: stepnet's named cell that computes the function in
    `semantics` if there is one, which is faster, else the equations of the function. parameters: arrays by
    parameter, then by gate. reverse: True to run from the last step.
    """
    name = named_cell(semantics, parameters)
    if name is not None:
        return cells.rnn(name, cell_parameters(name, parameters), reverse=reverse)
    params: dict[str, Any] = dict(parameters)
    for parameter in ("P", "q"):
        if parameter in parameters:
            params[parameter] = parameters[parameter][""]
    memory: Any = {"h": sizes.output, "c": sizes.hidden} if semantics.cell == "lstm" else sizes.hidden
    inputs = next(iter(parameters["W"].values())).shape[0]
    return RNN(step_of(semantics), params, memory=memory, inputs=inputs, reverse=reverse)


def named_cell(semantics: Semantics, parameters: Blocks) -> str | None:
    """Returns the name of stepnet's cell that computes exactly the function in `semantics` of these
    parameters, which runs faster than equations; None if there is none. `parameters` are by parameter, then
    by gate.
    """
    for name, cell in cells.CELLS.items():
        record = record_of(f"stepnet.{name}")
        other_parameters = {parameter for parameter in parameters if parameter in ("p", "P", "q")}
        complete = all(
            parameters[bias].keys() == parameters["W"].keys() for bias in cells.BIASES if bias in parameters
        )
        if record.settled({}) == semantics and other_parameters == set(cell.further) and complete:
            return name
    return None


def cell_parameters(name: str, parameters: Blocks) -> dict[str, Array]:
    """Converts parameters by gate to the parameters of the named cell: the gates of W, R, b and d
    concatenated along the last axis, the projection P as it is, and the peepholes p stacked in the order i,
    f, o.
    """
    gates = cells.CELLS[name].gates
    params = {
        parameter: np.concatenate([parameters[parameter][gate] for gate in gates], -1)
        for parameter in "WRbd"
        if parameter in parameters
    }
    params |= {"P": parameters["P"][""]} if "P" in parameters else {}
    return params | ({"p": np.stack([parameters["p"][gate] for gate in "ifo"])} if "p" in parameters else {})
