"""Libraries for C: `build` makes one from a model, or what runs on a device; `load` loads one into Python."""

from stepnet.build.building import Build, build
from stepnet.build.device_builds import DeviceBuild
from stepnet.build.loaded import Library, load

__all__ = ["Build", "DeviceBuild", "Library", "build", "load"]

__dir__ = __all__.copy
