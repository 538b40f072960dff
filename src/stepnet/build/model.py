"""The model that a C library computes: its schedule, its parameters, and the arguments of its C function."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import ROWS, Type
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import library_engine
from stepnet.compiler.trace.step import Spec, specs
from stepnet.compiler.values.arguments import short_repr
from stepnet.compiler.values.structure import leaves, named_leaves, transform
from stepnet.errors import InputError
from stepnet.model.batch import with_default_dtypes, with_dtypes
from stepnet.model.blank import no_sequences
from stepnet.model.model import Model
from stepnet.model.program import Program

Array = np.ndarray
KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "auto break case char const continue default do double else enum extern float for goto if inline int "
        "long register restrict return short signed sizeof static struct switch typedef union unsigned void "
        "volatile while and not or xor class new delete this template operator private public context "
        "sequences offsets NULL bool true false int64_t int32_t uint16_t uint8_t size_t",
    )
)
"""Names that no argument may have: keywords of C and C++, and the names of other arguments and types."""


@dataclass(frozen=True)
class ArrayArgument:
    """An array argument of the C function. name: its name in C. kind: "sequence", "initial" or "static" for
    an input; "output" or "final" for a result. index: the index of its value among the inputs or results of
    the net. type: the type of the value. optional: it may be NULL, which means zeros for an initial memory,
    and an unwanted result.
    """

    name: str
    kind: str
    index: int
    type: Type
    optional: bool

    @property
    def by_row(self) -> bool:
        """True if the array argument has one value per sequence, not per step."""
        return self.type.extent == ROWS

    @property
    def is_result(self) -> bool:
        """True if the C function writes the array argument: it is an output or a final memory."""
        return self.kind in ("output", "final")


@dataclass(frozen=True)
class BuiltModel:
    """A model to build a C library from. schedule: the parts of the model, in the order they run. params: the
    parameters, in the order of the net. arguments: the array arguments of the C function. text: a description
    for the user.
    """

    schedule: Schedule
    params: tuple[Array, ...]
    arguments: tuple[ArrayArgument, ...]
    text: str

    @property
    def net(self) -> Net:
        """The net (graph of operations) of the whole model."""
        return self.schedule.net


def built_model(model: Any, inputs: Any = None, statics: Any = None) -> BuiltModel:
    """Reads all that a C library needs of a model: its schedule, its parameters and its array arguments.
    inputs, statics: the features of the inputs and statics, as for `RNN`; needed if the model was made
    without them. Raises `InputError` if `model` is not a model, if its inputs are unknown, or if its
    sequences end early.
    """
    if not isinstance(model, Model):
        raise InputError(
            f"a library is built of an RNN, a Stack, a Bidirectional or a Graph, not {short_repr(model)}"
        )
    program = program_of(model, specs(inputs), specs(statics))
    schedule = program.schedule_for(library_engine())
    return BuiltModel(
        schedule, tuple(map(np.asarray, program.params)), arguments_of(program, schedule), repr(model)
    )


def program_of(model: Model, inputs: Any, statics: Any) -> Program:
    """Returns the program of a model (its net with the parameters) from which a library is built.

    inputs, statics: `Spec`s of the features; None for those that the model was made with. A feature spec
    without dtype takes that of the parameters. Raises `InputError` if the features of the inputs are unknown,
    or if sequences end early.
    """
    declared, declared_statics, own = model.declaration
    params = leaves(own)
    inputs = declared if inputs is None else inputs
    statics = declared_statics if statics is None else statics
    if model.ends_early:
        raise InputError(
            "sequences that end early (until=) are not built: Python decides at which step they end"
        )
    if inputs is None:
        raise InputError("the model was made without inputs=: give their features with build(..., inputs=)")
    inputs = with_dtypes(inputs, params)
    still = None if statics is None else transform(no_rows, with_default_dtypes(statics, inputs, params))
    return model.reading(transform(no_sequences, inputs), still).running


def no_rows(spec: Spec) -> Array:
    """Makes an array without rows, with a static's features and dtype, as an example from which a program is
    traced. Raises `InputError` for a static that is a sequence.
    """
    if spec.axis:
        raise InputError("statics that are sequences are not built: a library takes flat sequences")
    return np.empty((0, *spec.shape), spec.dtype)


def arguments_of(program: Program, schedule: Schedule) -> tuple[ArrayArgument, ...]:
    """Lists the array arguments in the order of the C function: sequences, initial memories, statics (one
    value per sequence), outputs, final memories. Their C names are those of the values, with the prefixes
    "initial", "y" and "final". Initial memories may be left out if the model has memories of its own.
    """
    net, ends = schedule.net, program.ends
    used_names = set[str]()
    memories = [name for name, _ in named_leaves(program.memory)] if program.memories else []
    has_named_memories = program.memories > 0
    arguments = list[ArrayArgument]()

    def add(kind: str, indices: Sequence[int], names: Iterable[str], optional: bool) -> None:
        """Adds an argument of a kind for each index in `indices` among the net's inputs, or its results for
        "output" and "final". names: the value's names, from which unique C names are made. optional: NULL is
        allowed.
        """
        numbers = net.results if kind in ("output", "final") else net.inputs
        for index, name in zip(indices, names, strict=True):
            arguments.append(
                ArrayArgument(c_name(name, used_names), kind, index, net.type_of(numbers[index]), optional)
            )

    def name_of(index: int) -> str:
        """Returns the name of an input of the net, by its index."""
        return net.nodes[net.inputs[index]].name or "value"

    add("sequence", ends.sequences, ["x" if n == "" else n for n in map(name_of, ends.sequences)], False)
    initial_names = (
        [joined_name("initial", name) for name in memories]
        if has_named_memories
        else list(map(name_of, ends.memories))
    )
    initial_names += [f"initial_{name_of(index)}" for index in ends.memories[len(initial_names) :]]
    add("initial", ends.memories, initial_names, has_named_memories)
    add("static", ends.statics, map(name_of, ends.statics), False)
    outputs = len(net.results) - program.memories
    names = [joined_name("y", name) for name, _ in named_leaves(program.output)]
    add("output", range(outputs), names, True)
    final = [joined_name("final", name) for name in memories]
    add("final", range(outputs, len(net.results)), final, True)
    return tuple(arguments)


def joined_name(first: str, name: str) -> str:
    """Joins a prefix, `first`, and the name of a value by an underscore, as in "final_h", to name a C
    argument; an empty name leaves the prefix.
    """
    return f"{first}_{name}" if name else first


def c_name(text: str, taken: set[str]) -> str:
    """Makes a C identifier from a text. It differs from all in `taken`, to which it is added.

    >>> taken = set()
    >>> c_name("layer 0.h", taken), c_name("layer_0.h", taken), c_name("double", taken), c_name("2", taken)
    ('layer_0_h', 'layer_0_h_2', 'double_', 'v2')
    """
    name = re.sub(r"[^0-9A-Za-z_]+", "_", text).strip("_") or "value"
    name = f"v{name}" if name[0].isdigit() else name
    name = f"{name}_" if name in KEYWORDS else name
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    taken.add(unique)
    return unique
