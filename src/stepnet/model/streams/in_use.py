"""A guard for streams: one call at a time, as the machine code of two would write to the same arrays."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from stepnet.errors import InputError

IN_USE = (
    "another call of this stream has not returned yet: one thread uses a stream at a time; give each thread "
    "a stream, or hold a lock around the calls of this one"
)


class Used(Protocol):
    """An object that is marked as in use while one of its calls runs."""

    in_use: bool


Self = TypeVar("Self", bound=Used)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def alone(
    method: Callable[Concatenate[Self, Arguments], Result],
) -> Callable[Concatenate[Self, Arguments], Result]:
    """Decorates a method to raise `InputError` while another call on the same object runs.

    Python runs nothing between the check of `in_use` and its change, so neither another thread nor an
    interrupt can come in between. A lock would stay locked if an interrupt came just after it was acquired.
    """

    @wraps(method)
    def call(self: Self, /, *args: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        """Calls the method with the object marked as in use; raises `InputError` if it is marked already."""
        if self.in_use:
            raise InputError(IN_USE)
        self.in_use = True
        try:
            return method(self, *args, **keywords)
        finally:
            self.in_use = False

    return call
