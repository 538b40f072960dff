"""The devices that models are brought to by `to`, and the engines that run there."""

from typing import Any

from stepnet.compiler.targets import engine_named
from stepnet.compiler.targets.cuda.options import DEFAULT, checked_options, engine_name
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import DeviceError, InputError

CPU, EMULATED, GPU = "cpu", "cuda-emulated", "cuda"
"""The devices; a GPU may have a number after a colon, from 0 on."""


def engine_on(device: Any, precision: Any, batch_invariant: Any) -> str:
    """Returns the name of the engine for a device; "" for the CPU, where models run without one.

    device, precision, batch_invariant: the arguments of `Model.to`.

    Raises `InputError` for wrong arguments, and `DeviceError` for a device that is not here.
    """
    kind, colon, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    is_number = kind == GPU and number.isdecimal()
    if kind not in (CPU, EMULATED, GPU) or (colon and not is_number):
        raise InputError(
            f"device is {CPU!r}, {GPU!r}, 'cuda:1' for the second GPU and so on, or {EMULATED!r}, not "
            f"{short_repr(device)}"
        )
    options = checked_options(precision, batch_invariant)
    if kind == CPU:
        if options != DEFAULT:
            raise InputError(f"precision= and batch_invariant= are options of a GPU, not of {CPU!r}")
        return ""
    name = engine_name(kind, int(number or 0), options)
    if missing := getattr(engine_named(name), "missing", ""):
        raise DeviceError(f"{name}: {missing}")
    return name
