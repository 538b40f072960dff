"""The files of a step of a model for a device: machine code in a package."""

from dataclasses import replace
from typing import Any

from stepnet.compiler.targets.frame.built import BuiltSource, manifest
from stepnet.compiler.targets.frame.lowering import lowered_step
from stepnet.compiler.targets.frame.machine.code import object_of, static_library
from stepnet.compiler.targets.frame.machine.code_sizes import sizes_of_code
from stepnet.compiler.targets.frame.machine.interface import MachineProgram
from stepnet.compiler.targets.frame.machine.platforms import DEVICES, NPM, check_computes
from stepnet.compiler.targets.frame.packages.libraries import packaged
from stepnet.compiler.targets.frame.packages.npm import npm_package
from stepnet.compiler.targets.frame.sizes import check_fits
from stepnet.compiler.targets.frame.step import ModelStep
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import InputError


def built_device(
    step: ModelStep,
    name: str,
    about: str,
    target: str,
    package: Any = None,
    beside: bool = False,
    ram: int | None = None,
    flash: int | None = None,
) -> BuiltSource:
    """Builds a package of a step of a model for a device.

    target: the name of the platform. package: the kind of package; None for the platform's first. beside: the
    weights are a file of their own, in a package for browsers. The others are as in `built_source`. Raises
    `InputError` for a kind of package that the platform has not, and `RefusedError` as `built_source` does
    and for a platform without instructions for the model's dtypes.
    """
    platform = DEVICES[target]
    kind = platform.packages[0] if package is None else package
    if kind not in platform.packages:
        kinds = ", ".join(platform.packages)
        raise InputError(f"package for {target} is one of {kinds}, not {short_repr(package)}")
    if beside and kind != NPM:
        raise InputError(f"a library for {target} has its weights inside: leave out weights='beside'")
    if kind == NPM and name == "package":
        raise InputError("name is not 'package' in a package for browsers, which has a file package.json")
    program = lowered_step(step)
    check_computes(program, platform)
    declared = MachineProgram(program, name, " ".join(about.split()).replace("*/", "* /"), platform)
    data = object_of(declared)
    declared = replace(declared, measured=sizes_of_code(declared, data))
    check_fits(program, declared.sizes, ram, flash)
    described = {f"{name}.json": manifest(declared, target, about)}
    if kind == NPM:
        contents = npm_package(declared, beside)
    else:
        header = declared.header().encode()
        contents = packaged(name, platform, kind, header, static_library(declared, data))
    return BuiltSource(program, contents | described, declared.sizes)
