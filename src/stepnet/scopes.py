"""Looking inside a recurrence: every named value of every step, as the interpreter computes it.

Steps of a net have no names for their values, so the step is traced once more, watched: as each of its
functions returns, its local variables say what its values are called. They are made further outputs.
"""

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from io import StringIO
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from rich.console import Console
from rich.table import Table

from stepnet.control import Until
from stepnet.errors import InputError
from stepnet.interpret import Segments, interpret
from stepnet.ir import Builder
from stepnet.lines import code_of, is_users
from stepnet.ragged import Ragged
from stepnet.step import Step
from stepnet.structure import leaves, named_leaves
from stepnet.trace import Traced
from stepnet.types import DTYPES, is_integer

if TYPE_CHECKING:
    from stepnet.recurrence import RNN

Array = np.ndarray
SHOWN = 4
"""How many numbers of a value are shown."""


@dataclass(frozen=True, repr=False)
class Scopes:
    """Every named value of every step; see `RNN.trace_steps`.

    values: by name a `Ragged` with the value of each step, in the order in which the step comes to them.

    >>> import stepnet as sn
    >>> def step(x, h, params):
    ...     doubled = 2 * x
    ...     total = h + doubled
    ...     return total, total
    >>> scopes = sn.RNN(step, memory=()).trace_steps(sn.Ragged.from_list([[1.0, 2.0], [], [3.0]]))
    >>> scopes
    Scopes(8 values, 3 sequences of 0 to 2 steps)
    >>> scopes["doubled"].to_list()
    [array([2., 4.]), array([], dtype=float64), array([6.])]
    >>> {name: float(value) for name, value in scopes.step(0, 1).items()}
    {'inputs': 2.0, 'before': 2.0, 'x': 2.0, 'h': 2.0, 'doubled': 4.0, 'total': 6.0, ...}
    >>> print(scopes)
    value    is     at step 0 of sequence 0
    inputs   f64[]  1
    before   f64[]  0
    x        f64[]  1
    h        f64[]  0
    doubled  f64[]  2
    total    f64[]  2
    outputs  f64[]  2
    after    f64[]  2
    """

    values: dict[str, Ragged]

    def __getitem__(self, name: str) -> Ragged:
        if name not in self.values:
            raise InputError(f"no value is called {name!r}; there are {', '.join(self.values)}")
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        return name in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def step(self, row: int, number: int) -> dict[str, Any]:
        """Every value of one step of one sequence, by name: arrays [features...].

        Raises `InputError` for a sequence or a step that there is not.
        """
        lengths = next(iter(self.values.values())).lengths
        if not is_integer(row) or not -len(lengths) <= row < len(lengths):
            raise InputError(f"there is no sequence {row}: there are {len(lengths)}")
        steps = int(lengths[row])
        if not is_integer(number) or not -steps <= number < steps:
            raise InputError(f"sequence {row} has no step {number}: it has {steps}")
        return {name: value[row][number] for name, value in self.values.items()}

    def __repr__(self) -> str:
        one = next(value for value in self.values.values() if value.levels == 1)
        sequences = repr(one.with_values(np.empty(one.total))).removeprefix("Ragged(").split(",")[0]
        return f"Scopes({len(self)} values, {sequences})"

    def __str__(self) -> str:
        """A table of the values: what each is, and its first numbers."""
        lengths = next(iter(self.values.values())).lengths
        row = next((place for place, length in enumerate(lengths) if length), None)
        first = {} if row is None else self.step(row, 0)
        table = Table(box=None, pad_edge=False)
        for column in ("value", "is", "no steps" if row is None else f"at step 0 of sequence {row}"):
            table.add_column(column, no_wrap=True)
        for name, value in self.values.items():
            shape = ", ".join(map(str, value.features))
            table.add_row(name, f"{DTYPES[value.dtype.name]}[{shape}]", numbers_text(first.get(name)))
        text = StringIO()
        Console(file=text, width=1000, color_system=None, markup=False, emoji=False).print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def numbers_text(value: Any) -> str:
    """The first numbers of an array; of inner sequences how many there are."""
    if value is None:
        return ""
    if isinstance(value, Ragged):
        return repr(value)
    flat = np.ravel(value)
    shown = [f"{number:.4g}" if flat.dtype.kind == "f" else str(number) for number in flat[:SHOWN].tolist()]
    return " ".join([*shown, *["..."][: flat.size > SHOWN]])


# ---- finding them ------------------------------------------------------------------------------------------


def step_scopes(rnn: "RNN", sequences: Any, initial: Any, statics: Any, lengths: Any) -> Scopes:
    """Every named value of every step of the sequences."""
    names: dict[str, Any] = {}
    whole = type(rnn)(
        watched(rnn.step, names),
        rnn.params,
        memory=rnn.memory,
        reverse=rnn.reverse,
        until=None if rnn.until is None else of_output(rnn.until),
    )
    whole.inputs = rnn.inputs
    outputs, _ = whole(sequences, initial, statics, lengths, engine="interpret")
    found = {
        number: value if isinstance(value, Ragged) else Ragged.from_padded(value, lengths)
        for number, value in zip(in_rows(names), outputs["named"], strict=True)
    }
    steps = next(value for value in found.values() if value.levels == 1)
    constants = constant_arrays(names, leaves(rnn.params))

    def repeated(array: Array) -> Ragged:
        return steps.with_values(np.broadcast_to(array, (steps.total, *array.shape)))

    return Scopes(
        {
            name: repeated(constants[name]) if name in constants else found[leaf.number]
            for name, leaf in names.items()
        }
    )


def watched(step: Step, names: dict[str, Any]) -> Step:
    """The step that gives {"output", "named"}: the named values, each once; `names` is told what they are."""
    code = code_of(step)

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> Any:
        first = roles(inputs=x, before=memory, statics=extras.get("statics"))
        builder = leaves(memory)[0].builder
        with watching() as returned:
            found: Any = step(x, memory, params, **extras)
        if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 2:
            return cast("Any", found)  # which is refused, as it is where nobody watches
        output, after = cast("tuple[Any, Any]", found)
        last = roles(outputs=output, after=after)
        local = local_values(dict(returned), code, builder)
        names.clear()
        names.update(first)
        for name, leaf in sorted(local.items(), key=lambda pair: pair[1].number):
            other = (first | last).get(name)
            if other is None:
                names[name] = leaf
            elif code is not None and not (isinstance(other, Traced) and other.number == leaf.number):
                names[f"{code.co_name}.{name}"] = leaf
        names.update(last)
        return {"output": output, "named": tuple(in_rows(names).values())}, after

    return run


def roles(**structures: Any) -> dict[str, Any]:
    """What values are to a recurrence, by name: `before` where there is one memory, else `before.h`."""
    return dict(named_leaves(structures))


def local_values(returned: dict[CodeType, Any], step: CodeType | None, builder: Builder) -> dict[str, Traced]:
    """The local variables that are values of a step: its own by their names, others as `function.name`.

    Parameters are none, which the caller has; what is made of them is one.
    """
    found: dict[str, Traced] = {}
    for code, variables in sorted(returned.items(), key=lambda pair: pair[0] is not step):
        if code is not step and code.co_name.startswith("<"):
            continue
        for name, leaf in named_leaves(variables):
            if not isinstance(leaf, Traced) or leaf.builder is not builder:
                continue
            if not leaf.is_constant or builder.nodes[leaf.number].operation != "input":
                found[name if code is step else f"{code.co_name}.{name}"] = leaf
    return found


def in_rows(names: dict[str, Any]) -> dict[int, Traced]:
    """The named values that are not the same at every step, each once, by their numbers."""
    rows = [leaf for leaf in names.values() if isinstance(leaf, Traced) and not leaf.is_constant]
    return {leaf.number: leaf for leaf in rows}


def constant_arrays(names: dict[str, Any], params: list[Array]) -> dict[str, Array]:
    """The named values that are the same at every step: arrays, and what is made of parameters alone."""
    arrays = {name: np.asarray(leaf) for name, leaf in names.items() if not isinstance(leaf, Traced)}
    made = {name: leaf for name, leaf in names.items() if isinstance(leaf, Traced) and leaf.is_constant}
    if not made:
        return arrays
    net = next(iter(made.values())).builder.net(leaf.number for leaf in made.values())
    types = [net.type_of(number) for number in net.inputs[: len(net.inputs) - len(params)]]
    none = [np.zeros((0, *type_.shape), type_.dtype) for type_ in types]
    return arrays | dict(zip(made, interpret(net, [*none, *params], Segments(0)), strict=True))


def of_output(until: Until) -> Until:
    """The end of a watched step."""

    @wraps(until)
    def run(output: Any, memory: Any) -> Any:
        return until(output["output"], memory)

    return run


@contextmanager
def watching() -> Generator[list[tuple[CodeType, dict[str, Any]]]]:
    """Inside it, each of the user's functions puts its local variables into the list as it returns."""
    found: list[tuple[CodeType, dict[str, Any]]] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "return" and is_users(code):
            own = {*code.co_varnames, *code.co_cellvars}
            found.append((code, {name: value for name, value in frame.f_locals.items() if name in own}))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before)
