"""Constants of modules, set for a test: limits that small cases reach, sizes of scripts, and caches."""

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import pytest


@dataclass(frozen=True)
class Constants:
    """Sets constants of modules until the end of a test, as in `constants(tables, CHUNK_BYTES=700)`."""

    patch: pytest.MonkeyPatch

    def __call__(self, module: ModuleType | str, **values: object) -> None:
        """Sets constants of a module, given by its name where it has no other use in the test.

        Each has its name in capitals, and is there with a value of the same type; numbers are one type.
        """
        place = import_module(module) if isinstance(module, str) else module
        for name, value in values.items():
            before = vars(place)[name]
            kind = (int, float) if isinstance(before, int | float) else type(before)
            assert name.isupper(), f"{name} is no constant"
            assert isinstance(value, kind), f"{name} of {place.__name__} is {before!r}, not {value!r}"
            self.patch.setattr(place, name, value)
