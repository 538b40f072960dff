"""The place of an integer that is outside the rows of a parameter, for the message of a call.

Machine code says only that there is one. Its place is found after the call: all indices that follow from the
inputs alone, and not from a memory, are computed again from the net and the arrays of the call.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.net.interpreter import ACROSS, within
from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, ROWS, STEPS, Extent
from stepnet.compiler.targets import Call
from stepnet.compiler.values.records import dataclass
from stepnet.errors import IndexOutsideError
from stepnet.model.program import Program
from stepnet.ragged.positions import Positions

Array = np.ndarray
Place = Callable[[Extent, int], str]
UNKNOWN = {*ACROSS, "input", "index"}
"""The operations that are not computed again, besides inputs whose values are given."""


@dataclass(frozen=True)
class IndexedTable:
    """A parameter that a net takes rows of.

    name: its name, in backticks; "it" if it has none. rows: the number of its rows. outside: the first index
    outside of these, with the extent and the number of its entry; None if none is known.
    """

    name: str
    rows: int
    outside: tuple[int, Extent, int] | None


def located_in_call(error: IndexOutsideError, program: Program, call: Call) -> IndexOutsideError:
    """Returns the error of a call with the integer, its sequence and step, and the parameter's name and rows.
    error: the error of the kernel. program, call: the program that ran, and the arrays that it was given.
    """
    return located_in_net(error, program.net, [*call.given, *program.params], call.positions)


def located_in_net(
    error: IndexOutsideError, net: Net, arrays: Sequence[Array | None], positions: Positions
) -> IndexOutsideError:
    """Returns the error of a net's run with the integer, its place, and the parameter's name and rows.

    error: the error of the kernel. net, arrays: the net that ran, and its inputs in order; None for zeros.
    positions: where the steps of the sequences lie in the arrays.
    """
    ordered = [
        array[positions.all_step_indices]
        if array is not None and net.type_of(number).extent == STEPS
        else array
        for number, array in zip(net.inputs, arrays, strict=False)
    ]
    return located(error, net, ordered, partial(place_of, positions))


def place_of(positions: Positions, extent: Extent, entry: int) -> str:
    """Returns the text for the place of an entry of a value of this extent: its sequence and its step.

    positions: where the sequences of the call lie.
    """
    if extent == STEPS:
        row = int(np.searchsorted(positions.offsets, entry, "right")) - 1
        step = f" at step {entry - int(positions.offsets[row])}"
        return f"{step} of {sequence_at(positions, row)}" if positions.rows > 1 else step
    return f" in {sequence_at(positions, entry)}" if extent == ROWS and positions.rows > 1 else ""


def sequence_at(positions: Positions, row: int) -> str:
    """Returns the text for the sequence at a row of a batch, by the caller's number."""
    return f"sequence {row if positions.numbers is None else positions.numbers[row]}"


def located(
    error: IndexOutsideError, net: Net, arrays: Sequence[Array | None], place: Place
) -> IndexOutsideError:
    """Returns an error with the integer, its place, and the name and the rows of the parameter.

    net, arrays: the net that ran, and its inputs, end to end, in order; None for zeros.
    place: returns the text for the place of an entry of a value, by its extent and number.
    """
    given = zip(net.inputs, arrays, strict=False)
    tables = tables_of(net, {number: array for number, array in given if array is not None})
    message, *below = error.args
    for table in tables:
        if table.outside is not None:
            number, extent, entry = table.outside
            has = f"{table.name} has {table.rows} row{'s' * (table.rows != 1)}"
            return IndexOutsideError(f"{message}: {number}{place(extent, entry)}, and {has}", *below)
    rows = dict.fromkeys(f"{table.name} has {table.rows}" for table in tables)
    return IndexOutsideError(f"{message}: {', '.join(rows)}" if rows else message, *below)


def tables_of(net: Net, values: Mapping[int, Array]) -> list[IndexedTable]:
    """Returns the parameters that a net and the bodies of its recurrences take rows of.

    values: the values of the inputs, by number of the node.
    """
    known = computed(net, dict(values))
    tables = list[IndexedTable]()
    for node in net.nodes:
        if node.operation == "gather":
            table, index = node.inputs
            rows = net.type_of(table).shape[0]
            extent, indices = net.type_of(index).extent, known.get(index)
            given = known.get(chosen_from(net, index), indices)
            tables.append(
                IndexedTable(name_of(net, table), rows, first_outside(indices, given, rows, extent))
            )
        elif node.operation == "recur":
            body = node.recur.body
            kinds = node.recur.operands_by_kind(list(zip(body.inputs, node.inputs, strict=True)))
            constant: list[Any] = [pair for pair in kinds.others if net.type_of(pair[1]).extent == CONST]
            still = [pair for pair in kinds.others if pair not in constant]
            # Values per step and values per row are apart, as entries of them do not correspond.
            for pairs, extent in ((kinds.sequences, STEPS), (still, ROWS)):
                inside = {own: known[given] for own, given in (*pairs, *constant) if given in known}
                for table in tables_of(body, inside):
                    if table.outside is not None and table.outside[1] == ROWS:
                        table = IndexedTable(
                            table.name, table.rows, (table.outside[0], extent, table.outside[2])
                        )
                    tables.append(table)
    return tables


def computed(net: Net, values: dict[int, Array]) -> dict[int, Array]:
    """Computes the values that the indices of a net need, if they follow from `values`; all by number."""
    needed = needed_of(net)
    for number, node in enumerate(net.nodes):
        ready = number in needed and number not in values and node.operation not in UNKNOWN
        if ready and all(operand in values for operand in node.inputs):
            with np.errstate(all="ignore"):
                values[number] = within(node, [values[operand] for operand in node.inputs])
    return values


def needed_of(net: Net) -> set[int]:
    """Returns the numbers of the values from which the indices of a net, and of its bodies, are computed."""
    needed = {node.inputs[1] for node in net.nodes if node.operation == "gather"}
    for number in reversed(range(len(net.nodes))):
        node = net.nodes[number]
        if node.operation == "recur":
            inside = needed_of(node.recur.body)
            pairs = zip(node.recur.body.inputs, node.inputs, strict=True)
            needed.update(given for own, given in pairs if own in inside)
        elif number in needed:
            needed.update(node.inputs)
    return needed


def chosen_from(net: Net, number: int) -> int:
    """Returns the number of the index that the user gave, before a step replaces some indices by a constant.
    An embedding of PyTorch, for example, replaces integers below 0.
    """
    node = net.nodes[number]
    while node.operation in ("where", "cast"):
        others = [each for each in node.inputs[-2:] if net.type_of(each).extent != CONST]
        if len(others) != 1:
            break
        number = others[0]
        node = net.nodes[number]
    return number


def first_outside(
    indices: Array | None, given: Array | None, rows: int, extent: Extent
) -> tuple[int, Extent, int] | None:
    """Returns the first index outside of a table, with the extent and the number of its entry; None if there
    is none, or none is known.

    given: the numbers that became the indices, one for each. rows: the number of rows of the table, which are
    counted from the end too.
    """
    if indices is None or given is None:
        return None
    found = np.argwhere((indices < -rows) | (indices >= rows))
    if not len(found):
        return None
    first = tuple(found[0])
    return int((given if given.shape == indices.shape else indices)[first]), extent, int((*first, 0)[0])


def name_of(net: Net, number: int) -> str:
    """Returns the name of a parameter in backticks, also if it is read by views; "it" for one without."""
    while not net.nodes[number].name and net.nodes[number].inputs:
        number = net.nodes[number].inputs[0]
    name = net.nodes[number].name
    return f"`{name}`" if name else "it"
