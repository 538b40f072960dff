"""Builds for devices: files of a program that runs one frame at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from stepnet.build.model import built_model
from stepnet.compiler.targets import library_engine
from stepnet.compiler.targets.frame import DEVICES, FrameProgram, FrameSizes, ModelStep
from stepnet.compiler.values.arguments import checked_integer
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.model.streams.frames import step_of_call, with_names

if TYPE_CHECKING:
    from stepnet.compiler.targets.frame import BuiltSource

SOURCE = "c"
"""The target that is source code."""
MOST_BYTES = 2**40
DeviceTarget = Literal[
    "c",
    "wasm32",
    "wasm32-plain",
    "cortex-m0plus",
    "cortex-m4f",
    "cortex-m33",
    "cortex-m55",
    "armv7",
    "riscv64",
    "riscv64-plain",
    "riscv32",
    "aarch64-macos",
    "x86_64-macos",
    "aarch64-windows",
    "x86_64-windows",
]
"""The targets that run one frame at a time: source code, and the devices."""


@dataclass(frozen=True)
class DeviceBuild:
    """The files that were built for a device, or as source code.

    Attributes:
        manifest: The description of what was built and of its arrays, as JSON.
        sizes: What one frame takes of a machine: RAM, flash and multiply-adds.
        program: What one frame computes, as loops over arrays.
        header: The header that C programs include; None for browsers.
        source: The source in C, name.c; None for a device.
        static: The static library, lib*.a or *.lib; None for source code and for browsers.
        weights: The file of weights; None if the program holds them.
        others: The other files of a package for a device.
    """

    manifest: Path
    sizes: FrameSizes
    program: FrameProgram
    header: Path | None = None
    source: Path | None = None
    static: Path | None = None
    weights: Path | None = None
    others: tuple[Path, ...] = ()


def is_device_target(target: Any) -> TypeGuard[DeviceTarget]:
    """Returns whether a target runs one frame at a time."""
    return isinstance(target, str) and (target == SOURCE or target in DEVICES)


def model_step(model: Any, inputs: Any = None, statics: Any = None, dtype: Any = None) -> ModelStep:
    """Returns one step of a model, with all memories of its stream.

    inputs, statics: the features of the inputs and statics (values that each sequence has once, given at each
    step), needed if the model was made without them. dtype: the dtype of 16 bits to which matrices and tables
    are rounded; None for those that the model has. Raises `InputError` for what is no model, for one that has
    no stream, for one whose memories begin with its inputs, and for a dtype of a model that has low
    precisions.
    """
    call = built_model(model, library_engine().name, inputs, statics, one_frame=True)
    step: ModelStep | None = getattr(model, "frame_step", None)
    if step is None:
        return step_of_call(call, dtype)
    if dtype is not None:
        raise InputError("a model in integers alone has weights of int8: leave out dtype")
    return with_names(step, call)


def built_frames(
    model: Any,
    name: str,
    target: DeviceTarget,
    *,
    beside: bool = False,
    inputs: Any = None,
    statics: Any = None,
    left_out: Sequence[str] = (),
    ram: Any = None,
    flash: Any = None,
    package: Any = None,
    dtype: Any = None,
) -> "BuiltSource":
    """Returns the contents of the files of a model for a device. beside: the weights are a file of their own.
    The others are as for `build`, which says what is raised.
    """
    with IMPORTS:  # late: it needs llvmlite
        from stepnet.compiler.targets.frame import built_device, built_source

    about = repr(model) + (f"; without {', '.join(left_out)}" if left_out else "")
    limits = byte_count(ram, "ram"), byte_count(flash, "flash")
    step = model_step(model, inputs, statics, dtype)
    if target != SOURCE:
        return built_device(step, name, about, target, package, beside, *limits)
    if beside:
        raise InputError("source code has its weights inside: leave out weights='beside'")
    if package is not None:
        raise InputError("source code is in no package: leave out package, or give the name of a device")
    return built_source(step, name, about, *limits)


def device_build(name: str, made: "BuiltSource", paths: Sequence[Path]) -> DeviceBuild:
    """Returns the paths of the files of a build that runs one frame, by kind of file. name: of the build."""
    kinds = {
        f"{name}.h": "header",
        f"lib{name}.a": "static",
        f"{name}.lib": "static",
        f"{name}.c": "source",
        f"{name}.json": "manifest",
        f"{name}.weights": "weights",
    }
    found: dict[str, Any] = {kinds[path.name]: path for path in paths if path.name in kinds}
    others = tuple(path for path in paths if path.name not in kinds)
    return DeviceBuild(**found, sizes=made.sizes, program=made.program, others=others)


def byte_count(value: Any, name: str) -> int | None:
    """Returns a number of bytes, or None; raises `InputError` for other arguments. name: its name."""
    return None if value is None else checked_integer(value, f"{name} is a number of bytes", 0, MOST_BYTES)
