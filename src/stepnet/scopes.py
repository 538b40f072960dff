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
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from stepnet.errors import InputError
from stepnet.interpret import Segments, interpret
from stepnet.lines import code_of, is_users
from stepnet.ragged import Ragged
from stepnet.step import Step
from stepnet.structure import leaves, named_leaves
from stepnet.trace import Traced
from stepnet.types import DTYPES, is_integer

if TYPE_CHECKING:
    from stepnet.recurrence import RNN

Array = np.ndarray
Located = list[tuple[str, bool, dict[str, Any]]]
"""Of each function that returned its name, whether it is the step itself, and its local variables."""

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
        for number, value in outputs["named"].items()
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
    """The step that gives {"output", "named"}, the named values by their numbers; `names` is filled with them."""
    code = code_of(step)

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> Any:
        with watching() as calls:
            found = step(x, memory, params, **extras)
        if not isinstance(found, tuple) or len(cast("tuple[Any, ...]", found)) != 2:
            return found  # is refused, as it is where nobody watches
        output, after = cast("tuple[Any, Any]", found)
        first = {"inputs": x, "before": memory, "statics": extras.get("statics")}
        names.clear()
        names.update(roles(first) | roles({"outputs": output, "after": after}))
        last = roles({"outputs": output, "after": after})
        return {"output": output, "named": in_rows(names)}, after

    return run


def of_output(until: Until) -> Until:
    """The end of a watched step."""

    @wraps(until)
    def run(output: Any, memory: Any) -> Any:
        return until(output["output"], memory)

    return run


@contextmanager
def watching() -> Generator[list[Returned]]:
    """Inside it, what each of the user's functions returns with is put into the list."""
    found: list[Returned] = []

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
