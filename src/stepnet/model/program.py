"""Programs of recurrences and layers: a net, its schedule, and the kernels of the engines used so far.

    step --trace--> net --schedule--> parts --engine--> kernel --parameters--> bound

Calls, streams, generation and beam search all run the kernel that `Program.bound` returns. A program is
made for its parameters: they are copied, and refuse to be changed; `with_params` gives other ones to a copy.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn, Protocol, Self, cast

import numpy as np

from stepnet.compiler.net.encodings import Precision
from stepnet.compiler.net.ends import Ends
from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.types import WHOLE, is_derived, read_only_copy
from stepnet.compiler.plan.plan import Plan, Planning
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.plan.stored_schedule import StoredSchedule
from stepnet.compiler.targets import Bound, Kernel, Order, Results, compiled, planning_for
from stepnet.compiler.trace.spec import Spec, TracedStep
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import array_of, dtype_name
from stepnet.compiler.values.collector import paused_collector
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.structure import (
    arranged,
    leaves,
    named_leaves,
    rebuild,
    rebuilder,
    skeleton,
    titled_leaves,
)
from stepnet.errors import InputError
from stepnet.model.executables import Runs

Array = np.ndarray
Asked = str | Sequence[str]
SHOWN = 6
"""The number of names of parameters that a message lists."""
REPLACED = "parameters are set with with_params(params), which returns a model that has them"


def has_derived(net: Net) -> bool:
    """Returns whether some values of a net have other numbers of steps than its sequences."""
    return any(is_derived(type_.extent) for type_ in net.types)


class NetProgram:
    """A net (graph of operations) with its compiled kernels, one for each choice of engines used so far."""

    def __init__(self, net: Net) -> None:
        """Stores the net; it is planned and compiled at first use."""
        self.net = net
        self.planned: Schedule | None = None
        self.kernels = dict[Order, Kernel]()
        self._runs = dict[Order, Runs]()

    @property
    def schedule(self) -> Schedule:
        """The schedule of the net for `engine="auto"`: its parts in the order they run, with their plans."""
        return self.schedule_of(planning_for("auto"))

    def schedule_of(self, planning: Planning) -> Schedule:
        """Returns the schedule of the net by the passes and costs of an engine. Schedules of other engines
        are derived from the schedule that was asked for first, so that no engine is imported before something
        runs on it.
        """
        if self.planned is None:
            self.planned = StoredSchedule(self.net, planning)
        return self.planned.planned(planning)

    @computed_once
    def ends(self) -> Ends:
        """The positions of the net's inputs and results, by kind (sequences, memories, statics, ...)."""
        return Ends.of(self.net)

    @computed_once
    def order(self) -> list[int]:
        """For each result of the net, its position among the results of a kernel, which are sorted by kind:
        values per step, then per row (sequence), then single values.
        """
        places = *self.ends.steps, *self.ends.rows, *self.ends.totals
        return sorted(range(len(places)), key=places.__getitem__)

    def schedule_for(self, asked: Order) -> Schedule:
        """Returns the schedule of the net (its division into parts), planned for the first of the requested
        engines. asked: an engine, or several in order of preference; a subclass may assign parts to them.
        """
        return self.schedule_of(planning_for(asked))

    def kernel(self, asked: Order) -> Kernel:
        """Returns the kernel (compiled code) for the requested engines, compiled at first use. asked: an
        engine, or several in order of preference.
        """
        if asked not in self.kernels:
            with paused_collector():
                self.kernels[asked] = compiled(self.schedule_for(asked), asked)
        return self.kernels[asked]

    def runs(self, asked: Order) -> Runs:
        """Returns a runner of the kernel (compiled net), made at first use, for parameters that change as in
        training.

        Each of its calls is given the parameters too.

        asked: an engine, or several in order of preference.
        """
        if asked not in self._runs:
            self._runs[asked] = Runs(self.kernel(asked))
        return self._runs[asked]


class Program(NetProgram):
    """A net for one kind of inputs, with its parameters, and its kernels for the engines requested so far.

    net: its inputs are sequences, memories, statics and parameters; its results are the outputs and then the
        final memories.
    output, memory: the structures of the caller's outputs and memories. The net may have further memories
        after these, which the caller does not see.
    last: the `Spec`s (features and dtypes) to which a call rounds the final memories.
    memories: the number of all memories of the net.
    params: the parameters, in the order of the net.
    gradients: the programs whose nets are differentiated, by the results and the memories that a call has.
    gradient_runs: the compiled gradients of the net, by what is differentiated and how (`gradient_strategy`).
        Copies with other parameters share them.
    """

    def __init__(
        self, net: Net, output: Any, memory: Any, last: Any, memories: int, params: list[Array]
    ) -> None:
        """Stores the arguments, which the class documents; machine code is compiled at first use."""
        super().__init__(net)
        self.output, self.memory, self.last = output, memory, last
        self.gradients, self.gradient_runs = dict[Any, Program](), OrderedDict[Any, Any]()
        self.memories, self.params = memories, params
        carried, given = ([spec.dtype for spec in leaves(specs)] for specs in (memory, last))
        self.rounded = None if carried == given else given
        self._bound = dict[Order, Bound]()

    @computed_once
    def as_given(self) -> "Program":
        """The program whose net takes initial memories and gives final ones in the dtypes of a call. It is
        this program if steps carry memories in these dtypes.
        """
        if self.rounded is None:
            return self
        net, builder, made = self.net, Builder(), dict[int, int]()
        places = [net.inputs[place] for place in self.ends.memories[: len(self.rounded)]]
        stored = dict(zip(places, self.rounded, strict=True))
        for number, node in enumerate(net.nodes):
            if number in stored:
                type_ = replace(node.type, dtype=stored[number])
                given = builder.input(type_, node.name)
                made[number] = builder.add("cast", given, dtype=node.type.dtype)
            else:
                made[number] = builder.copy(node, [made[operand] for operand in node.inputs])
        results = [made[number] for number in net.results]
        first = len(results) - self.memories
        for place, dtype in enumerate(self.rounded, first):
            results[place] = builder.add("cast", results[place], dtype=dtype)
        return Program(builder.net(results), self.output, self.last, self.last, self.memories, self.params)

    @property
    def plan(self) -> Plan:
        """The plan of the net, its operations in order; raises `InputError` if there are several plans."""
        whole = self.schedule.single_plan
        if whole is None:
            raise InputError(
                "the model runs in several parts, each with a plan of its own: print explain(), or look "
                "at schedule.parts"
            )
        return whole

    @computed_once
    def levels(self) -> tuple[int, ...]:
        """The number of ragged levels of each output: 1 for a value per step, 0 for one per sequence."""
        outputs = self.net.results[: len(self.net.results) - self.memories]
        return tuple(len(self.net.type_of(number).extent) - 1 for number in outputs)

    @computed_once
    def axes(self) -> tuple[str, ...]:
        """The axis of the steps of each output, such as "steps"; "" for an output per sequence."""
        outputs = self.net.results[: len(self.net.results) - self.memories]
        extents = [self.net.type_of(number).extent for number in outputs]
        return tuple(extent[-1] if len(extent) > 1 else "" for extent in extents)

    @computed_once
    def has_derived(self) -> bool:
        """True if some values have other numbers of steps than the sequences, as after a stride."""
        return has_derived(self.net)

    @computed_once
    def whole_axes(self) -> tuple[str, ...]:
        """The axes of the model's steps that recurrences read whole at each step, such as "steps"."""
        axes = {type_.extent[-1] for type_ in self.net.types if type_.extent}
        return tuple(sorted(axis.removeprefix(WHOLE) for axis in axes if axis.startswith(WHOLE)))

    @property
    def sequence_names(self) -> list[str]:
        """The names of the sequences in libraries for C: keys and positions, and "x" for the only one."""
        return [self.net.nodes[self.net.inputs[place]].name or "x" for place in self.ends.sequences]

    def split(self, results: Results) -> Results:
        """Separates outputs from final memories in the results of an engine; outputs keep their order.

        The engine puts outputs with a value per sequence into `final`, ahead of the final memories.
        """
        if 0 not in self.levels:
            return results
        steps, rows = iter(results.outputs), iter(results.final)
        outputs = [next(steps if levels else rows) for levels in self.levels]
        return Results(outputs, list(rows))

    def final(self, memories: list[Array]) -> Any:
        """Returns final memories in the structure of the memory, in the dtypes that a call returns. memories:
        the memories of the net; any after the memories of the caller are left out.
        """
        if self.rounded is not None:
            pairs = zip(memories, self.rounded, strict=False)
            memories = [array.astype(dtype, copy=False) for array, dtype in pairs]
        return memories[0] if isinstance(self.memory, Spec) else self._made_memory(memories)

    @cached_property
    def _made_memory(self) -> Callable[[Sequence[Any]], Any]:
        """A function that builds the structure of the final memories from their arrays."""
        return rebuilder(self.memory)

    def is_bound(self, asked: Order) -> bool:
        """Tells whether a kernel with the program's parameters exists for these engines."""
        return asked in self._bound

    def bound(self, asked: Order) -> Bound:
        """Returns the kernel for these engines, with the program's parameters; makes it at first use."""
        if asked not in self._bound:
            self._bound[asked] = self.kernel(asked).bind(self.params)
        return self._bound[asked]

    def with_params(self, params: Any) -> Self:
        """Returns a copy of the program with other parameters of the same shapes and dtypes; it shares
        machine code.
        """
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.params, made._bound = leaves(params), {}
        if "as_given" in vars(self):
            vars(made)["as_given"] = made if self.as_given is self else self.as_given.with_params(params)
        return made


class Beginning(Protocol):
    """An object that computes the initial memories of a model from its statics and parameters."""

    def add_to(self, builder: Builder, inputs: Sequence[int]) -> dict[int, int]:
        """Adds the computation of initial memories to a net; returns {position among the memories: number of
        the value that it begins with}.

        inputs: the numbers of values of the net, of which the last are the statics (values that each sequence
            has once) and the parameters.
        """
        ...

    def memories(self, statics: Sequence[Array], count: int, engine: Order) -> dict[int, Array]:
        """Computes initial memories of `count` sequences from statics, the values that each sequence has
        once; returns {position among the memories: array}. engine: the engines in order of preference.
        """
        ...


class StepProgram(Program):
    """The program of one traced step.

    traced: the trace of the step.
    reverse, unroll: the direction of the loop, and the number of steps in one pass of it.
    controlled: the programs of the step under a mask or with an early end, by the output at masked steps.
    begin: computes the initial memories; None where they are zeros.
    """

    begin: Beginning | None = None

    def __init__(self, traced: TracedStep, reverse: bool, unroll: int) -> None:
        """Makes the net that loops over the traced step, and its program.

        reverse, unroll: the direction of the loop, and the number of steps in one pass of it.
        """
        net = traced.net(reverse, unroll)
        params = leaves(traced.params)
        super().__init__(net, traced.output, traced.memory, traced.last, traced.counts[1], params)
        self.traced, self.reverse, self.unroll = traced, reverse, unroll
        self.controlled = dict[str | None, StepProgram]()

    def with_params(self, params: Any) -> Self:
        """Returns a copy of the program with other parameters of the same shapes and dtypes; it shares
        machine code.
        """
        made = super().with_params(params)
        made.traced = replace(self.traced, params=params)
        made.controlled = {name: program.with_params(params) for name, program in self.controlled.items()}
        return made

    @property
    def sequence_names(self) -> list[str]:
        """The names of the sequences in libraries for C: keys and positions, and "x" for the only one."""
        return [name or "x" for name, _ in named_leaves(self.traced.inputs)]

    def in_precision(self, precision: Precision) -> "StepProgram":
        """Returns a program of the step that computes in a precision, with its own plans and machine code."""
        return StepProgram(replace(self.traced, precision=precision), self.reverse, self.unroll)


# ---- parameters --------------------------------------------------------------------------------------------


def refuse_change(*_: Any, **__: Any) -> NoReturn:
    """Raises `InputError` for an attempt to change parameters in place, with the call to make instead."""
    raise InputError(f"{REPLACED}; dict(params) and list(params) make copies that may change")


class ReadOnlyDict(dict[Any, Any]):
    """Parameters by name, which raise `InputError` when they are changed. Copies are plain dicts."""

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = refuse_change  # pyright: ignore

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles the parameters as a plain dict."""
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """Parameters in order, which raise `InputError` when they are changed. Copies are plain lists."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = extend = insert = refuse_change  # pyright: ignore
    remove = pop = clear = sort = reverse = refuse_change  # pyright: ignore

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles the parameters as a plain list."""
        return list, (list(self),)


def own_parameters(params: Any, argument: str = "") -> Any:
    """Returns read-only copies of the parameters that a model is made with, in read-only dicts and lists.

    Raises `InputError` for an entry that is not an array, and for a Python number, which has no dtype.

    argument: the name of the step's argument for the parameters, for messages; "" for none.
    """
    named = list(titled_leaves(params, argument))
    for name, value in named:
        if is_number(value):
            whole, _, place = name.rpartition(".")
            lists = f"; a list of numbers is np.asarray({whole}, np.float32)" if place.isdecimal() else ""
            raise InputError(
                f"{called(name)} is the Python number {value!r}, which has no dtype: give "
                f"np.float32({value!r}), or a number of another dtype{lists}"
            )
    return read_only(rebuild(params, [parameter(value, called(name)) for name, value in named]))


def parameter(value: Any, what: str) -> Any:
    """Returns a read-only copy of a parameter as an array; raises `InputError` for a value that is not an
    array. Inside a step, a parameter of that step is returned unchanged. what: its name, for messages.
    """
    if isinstance(value, Traced) and value.is_constant:
        return value
    array = array_of(value, what)
    dtype_name(array.dtype, what)
    return read_only_copy(array)


def same_parameters(params: Any, before: Any, owner: str, argument: str = "") -> Any:
    """Copies new parameters; raises `InputError` unless they have the structure, shapes and dtypes of the
    old. A Python number gets the dtype of the parameter in whose place it is, if that is a floating one.

    params, before: the new and the old parameters.
    owner: the word for the model in messages.
    argument: the name of the step's argument for the parameters, for messages; "" for none.
    """
    given = arranged(params, before)
    named = list(titled_leaves(before, argument))
    check_names(given, before, owner, argument)
    if skeleton(given) != skeleton(before):
        raise InputError(
            f"the parameters {argument and f'`{argument}` '}are {skeleton(given)}; those of the {owner} are "
            f"{skeleton(before)}"
        )
    pairs = zip(leaves(given), named, strict=True)
    made = [parameter(typed_like(old, new), called(name)) for new, (name, old) in pairs]
    for (name, old), new in zip(named, made, strict=True):
        if new.shape != old.shape or new.dtype != old.dtype:
            raise InputError(
                f"{called(name)} is {new.dtype}{list(new.shape)}; that of the {owner} is "
                f"{old.dtype}{list(old.shape)}{'' if new.shape != old.shape else advice(old.dtype)}"
            )
    return read_only(rebuild(before, made))


def check_names(given: Any, before: Any, owner: str, argument: str) -> None:
    """Raises `InputError` for missing parameters, and for parameters that the model does not have, by name. A
    single parameter without a name, on either side, is not checked.

    given, before: the new and the old parameters.
    owner, argument: the words for the model and for the parameters in messages.
    """
    new, known = ([name for name, _ in titled_leaves(part, argument)] for part in (given, before))
    missing = [name for name in known if name not in new]
    unknown = [name for name in new if name not in known]
    wrong = [f"{listed(missing)} missing"] * bool(missing) + [f"{listed(unknown)} unknown"] * bool(unknown)
    if wrong and argument not in (*missing, *unknown):
        raise InputError(f"of the parameters of the {owner}, {' and '.join(wrong)}")


def listed(names: list[str]) -> str:
    """Writes names of parameters and the verb after them, for messages; of many names only the first.

    >>> listed(["W"]), listed(["W", "R"])
    ('W is', 'W, R are')
    """
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return f"{shown} {'is' if len(names) == 1 else 'are'}"


def advice(dtype: np.dtype[Any]) -> str:
    """Returns the advice of an error message: how to cast a parameter of a wrong dtype to this one."""
    return f": give .astype(np.{dtype}); a NumPy scalar of another dtype in an update changes the dtype"


def typed_like(old: Any, new: Any) -> Any:
    """Returns a Python number as an array of the old parameter's floating dtype; else unchanged."""
    floating = is_number(new) and np.result_type(old.dtype, 1.0) == old.dtype
    return np.asarray(new, old.dtype) if floating else new


def is_number(value: Any) -> bool:
    """Tells whether a value is a Python number, which takes the other operand's dtype; NumPy's do not."""
    return type(value) in (int, float, complex)


def called(name: str) -> str:
    """Names a parameter in messages. name: its argument, keys and positions; "" for the only one."""
    return f"parameter {name}" if name else "the parameter"


def read_only(structure: Any) -> Any:
    """Returns a structure of arrays whose dicts and lists raise an error when they are changed."""
    if isinstance(structure, Mapping):
        held = cast("Mapping[Any, Any]", structure)
        return ReadOnlyDict({key: read_only(child) for key, child in held.items()})
    if isinstance(structure, list):
        return ReadOnlyList(map(read_only, cast("list[Any]", structure)))
    if isinstance(structure, tuple):
        held = cast("Any", structure)
        items = map(read_only, held)
        return type(held)(*items) if hasattr(held, "_fields") else tuple(items)
    return structure
