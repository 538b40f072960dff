"""The programs of a model: one for each kind of inputs, and the prepared calls of all of them.

arrays --dtypes, features, levels--> program          looked up at each call
`Spec`s ----------------------------> program          traced where there is none
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from stepnet.errors import InputError
from stepnet.model.calls import Calls
from stepnet.model.executables import Form, put_latest
from stepnet.model.program import Program

Kind = TypeVar("Kind", bound=Program)
MOST_KINDS = 32
"""The largest number of kinds of inputs whose programs a model keeps."""


def keep(programs: OrderedDict[Any, Any], key: Any, program: Any) -> None:
    """Adds an entry to a cache, and removes the oldest entries beyond `MOST_KINDS`."""
    put_latest(programs, key, program, MOST_KINDS)


class Programs(Generic[Kind]):
    """The programs of a model for the kinds of inputs so far.

    by_specs: the programs by the `Spec`s of inputs and statics.
    by_arrays: the programs by the dtypes, features and levels of the arrays of a call.
    latest: the program for the latest kind of inputs; None before inputs are known.
    calls: the prepared calls of all programs.
    """

    def __init__(self) -> None:
        self.by_specs, self.by_arrays = OrderedDict[Any, Kind](), OrderedDict[Any, Kind]()
        self.latest: Kind | None = None
        self.calls = Calls[Kind]()

    def known(self, unknown: str) -> Kind:
        """The program for the latest kind of inputs; if there is none, raises `InputError(unknown)`."""
        if self.latest is None:
            raise InputError(unknown)
        return self.latest

    def prepared(
        self, sequences: Any, initial: Any, last_only: Any, engine: Any, masked: Any, time_major: Any
    ) -> tuple[Form | None, tuple[Any, Any] | None]:
        """The form of a call with these arguments, and its results if it was prepared, else None.

        The form is None for a call that is never prepared. Nothing is checked: the form of a call that was
        prepared has passed all checks.
        """
        form = self.calls.form(sequences, last_only, engine, masked, time_major)
        if form is None or (done := self.calls.run(form, sequences, initial)) is None:
            return form, None
        self.latest, results = done
        return form, results

    def for_specs(self, key: Any, make: Callable[[], Kind]) -> Kind:
        """The program for `Spec`s, made at first use."""
        return self._found(self.by_specs, key, make)

    def for_arrays(self, key: Any, make: Callable[[], Kind]) -> Kind:
        """The program for the arrays of a call, made at first use."""
        return self._found(self.by_arrays, key, make)

    def _found(self, programs: OrderedDict[Any, Kind], key: Any, make: Callable[[], Kind]) -> Kind:
        # A local, as other threads may make programs for other kinds of inputs meanwhile.
        """Looks a program up, makes it at first use, and keeps it as the latest."""
        program = programs.get(key)
        if program is None:
            program = make()
            keep(programs, key, program)
        self.latest = program
        return program

    def changed(self, change: Callable[[Kind], Kind]) -> "Programs[Kind]":
        """A copy with each program changed, once for all kinds of inputs that share it."""
        made, new = Programs[Kind](), dict[int, Kind]()

        def once(program: Kind) -> Kind:
            if id(program) not in new:
                new[id(program)] = change(program)
            return new[id(program)]

        for ours, theirs in ((made.by_specs, self.by_specs), (made.by_arrays, self.by_arrays)):
            ours.update((key, once(program)) for key, program in theirs.items())
        made.latest = None if self.latest is None else once(self.latest)
        return made
