"""Names of a step's values: its local variables, recorded when each of its functions returns.

Values of a net have no names, so the step is traced once more while its functions are watched. Values of a
recurrence inside the step become values of the step.
"""

import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import field
from functools import wraps
from types import CodeType, FrameType
from typing import Any, cast

from stepnet.compiler.net.ir import Builder
from stepnet.compiler.net.types import is_static_extent
from stepnet.compiler.trace.lines import code_of, is_users, user_frame
from stepnet.compiler.trace.spec import Step
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves
from stepnet.model.declared import Declared

Names = dict[str, Any]


@dataclass(frozen=True)
class InnerNames:
    """Values of a step that no local variable holds, and the recurrences inside it, by name."""

    values: Names = field(default_factory=Names)
    titles: dict[str, Declared] = field(default_factory=dict[str, Declared])


INNER_NAMES: ContextVar[InnerNames | None] = ContextVar("INNER_NAMES", default=None)


def watched(step: Step, names: Names) -> Step:
    """Wraps a step (the user's function of one step) so that it records the names of its values in `names`
    whenever it is traced.

    A value is one of the step's net, or an array. The inputs, memories, statics (values that each sequence
    has once) and outputs are named `inputs`, `before`, `after`, `statics` and `outputs`; a local variable
    with such a name is `step.inputs`.
    """
    code = code_of(step)

    @wraps(step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> Any:
        """Runs the user's step in a trace; fills `names` with its inputs, local variables and results."""
        first = roles(inputs=x, before=memory, statics=extras.get("statics"))
        builder = leaves(memory)[0].builder
        result, returned, inside = watching(lambda: step(x, memory, params, **extras))
        if not isinstance(result, tuple) or len(cast("tuple[Any, ...]", result)) != 2:
            return cast("Any", result)  # refused later, as in a trace that is not watched
        output, after = cast("tuple[Any, Any]", result)
        last = roles(outputs=output, after=after)
        local = inside.values | local_values(returned, code, builder)
        names.clear()
        names.update(joined_names(first, local, last, code))
        return output, after

    return run


def joined_names(first: Names, local: dict[str, Traced], last: Names, code: CodeType | None) -> Names:
    """Returns the named values of a step or model, in the order in which it computes them.

    first, last: the values of its arguments and of its results.
    local: the values of local variables. One with a name of `first` or `last` is named `function.name`.
    code: the code of the step or model; None if it is not known.
    """
    names = dict(first)
    for name, leaf in sorted(local.items(), key=lambda pair: pair[1].number):
        other = (first | last).get(name)
        if other is None:
            names[name] = leaf
        elif code is not None and not (isinstance(other, Traced) and other.number == leaf.number):
            names[f"{code.co_name}.{name}"] = leaf
    return names | last


def roles(**structures: Any) -> Names:
    """Returns values of structures by name: keyword `before` names one "before", else "before.h" etc."""
    return dict(named_leaves(structures))


def local_values(
    returned: dict[CodeType, Names], step: CodeType | None, builder: Builder
) -> dict[str, Traced]:
    """Returns the local variables that are values of a step, by name, or as `function.name` in functions.

    Parameters are left out, as the caller has them; a value computed from parameters is included.

    returned: by function, its local variables at its last return.
    step: the code of the step; None if it is not known.
    builder: the net of the step.
    """
    named: dict[str, Traced] = {}
    for code, variables in sorted(returned.items(), key=lambda pair: pair[0] is not step):
        if code is not step and code.co_name.startswith("<"):
            continue
        for name, leaf in values_in(variables, builder):
            if not leaf.is_constant or builder.nodes[leaf.number].operation != "input":
                named[name if code is step else f"{code.co_name}.{name}"] = leaf
    return named


def values_in(variables: Names, builder: Builder) -> Iterator[tuple[str, Traced]]:
    """Yields the values of a net among variables, also in plain dicts, lists and tuples, with their names.

    Objects of other types are not searched, and no container is searched twice.

    variables: the variables by name.
    builder: the net.
    """
    opened: set[int] = set()
    remaining = list(variables.items())[::-1]
    while remaining:
        name, value = remaining.pop()
        if isinstance(value, Traced):
            if value.builder is builder:
                yield name, value
        elif isinstance(value, dict | list | tuple) and id(cast("object", value)) not in opened:
            opened.add(id(cast("object", value)))
            remaining += [(f"{name}.{key}", child) for key, child in children(value)][::-1]


def children(value: Any) -> list[tuple[Any, Any]]:
    """Returns the items of a dict, list or tuple as (key, value) pairs, to search the local variables of a
    traced step for values of its net.

    The keys of a namedtuple are its fields, those of another tuple or list are indices.
    """
    if isinstance(value, dict):
        return [*dict[Any, Any].items(cast("dict[Any, Any]", value))]  # not the `items` of a subclass
    held, fields = cast("list[Any]", value), getattr(value, "_fields", None)
    named = isinstance(fields, tuple) and len(cast("tuple[Any]", fields)) == len(held)
    keys = cast("tuple[Any]", fields) if named else range(len(held))
    return [*zip(keys, held, strict=True)]


def watching(trace: Callable[[], Any]) -> tuple[Any, dict[CodeType, Names], InnerNames]:
    """Runs a trace of a step; returns its result, and the values that the user's variables held.

    These are the local variables of each of the user's functions at its last return, and values of
    recurrences inside the step.

    trace: the function that traces the step.
    """
    names: dict[CodeType, Names] = {}
    inside = InnerNames()

    def record_locals(frame: FrameType, event: str, _: Any) -> None:
        """Records a user's function's local variables when it returns, called by `sys.setprofile`."""
        code = frame.f_code
        if event == "return" and is_users(code):
            own = {*code.co_varnames, *code.co_cellvars} - {"_"}
            names[code] = {name: value for name, value in frame.f_locals.items() if name in own}

    # No context manager: an interrupt while it is entered or left would leave the profile function set.
    before, outside = sys.getprofile(), INNER_NAMES.get()
    try:
        INNER_NAMES.set(inside)
        sys.setprofile(record_locals)
        return trace(), names, inside
    finally:
        sys.setprofile(before)
        INNER_NAMES.set(outside)


def name_values(values: Names) -> None:
    """Adds values that no local variable of the step holds to the result of `trace_steps`, if the values of
    the step that is being traced are recorded. values: the values by name.
    """
    if (inner := INNER_NAMES.get()) is not None:
        inner.values.update(values)


# ---- recurrences inside a step -----------------------------------------------------------------------------


def as_watched(rnn: Declared) -> tuple[Declared, Callable[[Any], Any]]:
    """Returns a recurrence to run inside a step in place of `rnn`, and a function that restores its outputs.

    If the values of the step around it are not being recorded, this is `rnn` itself. Otherwise its named
    values are outputs too, and become values of the step around it: `name.value`, by the variable that holds
    the recurrence, or else by the name of its step. Values of sequences that each step reads whole are left
    out.
    """
    inside = INNER_NAMES.get()
    if inside is None:
        return rnn, lambda outputs: outputs
    names: Names = {}
    title = title_of(rnn, inside.titles)

    def output_of(outputs: Any) -> Any:
        """Records outputs["named"] of an inner recurrence in the step around it; returns its outputs."""
        named = (f"{title}.{name}" for name in shown_values(names))
        inside.values.update(zip(named, leaves(outputs["named"]), strict=True))
        return outputs["output"]

    inner = watched(rnn.step, names)

    @wraps(rnn.step)
    def run(x: Any, memory: Any, params: Any, **extras: Any) -> Any:
        """Runs the step; returns {"output": ..., "named": the named values}, and the next memory."""
        output, after = inner(x, memory, params, **extras)
        return {"output": output, "named": tuple(shown_values(names).values())}, after

    return rnn.with_step(run), output_of


def shown_values(names: Names) -> Names:
    """Returns a step's named values that are shown for each step: all but a sequence's static sequences."""
    values = {name: leaf for name, leaf in names.items() if isinstance(leaf, Traced)}
    hidden = {name for name, leaf in values.items() if is_static_extent(leaf.type.extent)}
    return {name: leaf for name, leaf in names.items() if name not in hidden}


def title_of(rnn: Declared, titles: dict[str, Declared]) -> str:
    """Returns the title of a recurrence in the names that `trace_steps` shows: the user's variable that holds
    it, or else the name of its step; with a number if another recurrence has that title.

    titles: the recurrences so far by title, to which this one is added.
    """
    frame = user_frame()
    scopes = () if frame is None else (frame.f_locals, frame.f_globals)
    held = [name for variables in scopes for name, value in variables.items() if value is rnn]
    name = held[0] if held else getattr(rnn.step, "__name__", type(rnn.step).__name__).strip("<>")
    title, count = name, 1
    while titles.setdefault(title, rnn) is not rnn:
        count += 1
        title = f"{name}{count}"
    return title
