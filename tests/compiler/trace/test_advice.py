"""Every public function of NumPy either is an operation of a step, or says what to write in place of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

import stepnet as sn
from stepnet.compiler.trace import COMPOSED, FUNCTIONS, UFUNCS
from stepnet.compiler.trace.advice import GROUPS, INSTEAD, NOTHING, message_for
from stepnet.errors import StepError

OPERATIONS = {*UFUNCS, *COMPOSED, *FUNCTIONS}


def public_functions() -> Iterator[Any]:
    """NumPy's public ufuncs, and the functions that it hands to the types of their arguments."""
    for module in (np, np.linalg, np.fft):
        for name in sorted({*getattr(module, "__all__", ()), *dir(module)}):
            function = None if name.startswith("_") else getattr(module, name, None)
            if isinstance(function, np.ufunc) or hasattr(function, "_implementation"):
                yield function


def said(function: Any) -> str:
    """The message of a step for a function of a value of it, whatever the function's arguments."""
    found: list[str] = []

    def step(x: Any, h: Any, p: Any) -> Any:
        try:
            if isinstance(function, np.ufunc):
                x.__array_ufunc__(function, "__call__", *[x] * function.nin)
            else:
                x.__array_function__(function, (type(x),), (x,), {})
        except StepError as error:
            found.append(str(error).partition("\n")[0])
        return x, h

    sn.RNN(step, memory=1, inputs=(3, 3))
    return found[0]


def test_every_function_is_an_operation_or_has_advice() -> None:
    missing = [one for one in dict.fromkeys(public_functions()) if one not in OPERATIONS]
    assert len(missing) > 100
    without = [
        f"{one.__module__}.{one.__name__}" if not isinstance(one, np.ufunc) else one.__name__
        for one in missing
        if "is not an operation of a step: " not in (text := said(one)) or text.endswith(NOTHING)
    ]
    assert without == []


def test_no_operation_has_advice() -> None:
    names = {f"np.{one.__name__}" for one in OPERATIONS} - {"np.linalg.norm"}
    assert names & INSTEAD.keys() == set()


def test_each_name_has_one_advice() -> None:
    names = [name for group in GROUPS.values() for name in group.split()]
    assert len(names) == len(set(names))


def test_a_method_has_the_advice_of_the_function() -> None:
    assert message_for(".partition").partition(": ")[2] == message_for("np.partition").partition(": ")[2]
    assert message_for("np.later").endswith(f": {NOTHING}")
