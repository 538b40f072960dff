"""Libraries for C: `build` makes one from a model, `load` loads one into Python to check it."""

from stepnet.build.building import Build, build
from stepnet.build.loaded import Library, load

__all__ = ["Build", "Library", "build", "load"]


def __dir__() -> list[str]:
    return sorted(__all__)
