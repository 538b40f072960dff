"""The kernels of a model: their PTX, and their results in emulation."""

import re
from collections.abc import Iterator
from typing import Any

from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.cuda.arrays.memory import CudaMemory
from stepnet.compiler.targets.cuda.codes import DeviceStage, ProductCode
from stepnet.compiler.targets.cuda.device import DeviceCode
from stepnet.compiler.targets.cuda.driver.facts import LOWEST, known_facts
from stepnet.compiler.targets.cuda.emulation.emulator import EmulatedDevice
from stepnet.compiler.targets.cuda.kernel import CudaKernel
from stepnet.compiler.targets.cuda.options import CudaOptions, CudaPrecision, checked_options
from stepnet.compiler.targets.cuda.ptx import CAPABILITIES, translated
from stepnet.compiler.values.arguments import checked_integer, short_repr
from stepnet.errors import ArgumentError, InputError
from stepnet.model.model import Model, checked_model

EMULATED = "cuda-emulated"
"""The name of the engine that runs kernels in emulation."""
OF_KERNELS = "kernels are of"


def ptx(
    model: Model,
    *,
    rows: int = 16,
    capability: str = "9.0",
    precision: CudaPrecision = "float32",
    batch_invariant: bool = False,
) -> dict[str, str]:
    """Returns the PTX of the kernels of a model, by a name for each, such as "part 0: loop", without a GPU.

    Products of all steps at once, which a library of kernels computes, are not among them.

    Args:
        model: A model that has been called, or was made with `inputs=`.
        rows: The number of sequences of a call, by which kernels are chosen.
        capability: The compute capability of the GPU, "8.0" or higher. Kernels are chosen for one such GPU:
            an A100 for "8.0", an H100 for "9.0".
        precision: The numbers that float32 is multiplied as, as for `engine`.
        batch_invariant: Whether a sequence has the same bits in every batch, as for `engine`.

    Raises:
        ArgumentError: For a `capability` that is no such text, is below 8.0, or that no GPU has.
        InputError: For a value that is no model, a model whose inputs are not known yet, fewer rows than 1,
            another precision, and a `batch_invariant` that is not True or False.
        LibraryError: If the installed llvmlite has no code generator for such GPUs.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> import stepnet.cuda
    >>> rnn = sn.RNN(lambda x, h, p: (x + h, x + h), memory=4, inputs=4)
    >>> [name for name, text in stepnet.cuda.ptx(rnn).items() if ".entry kernel" in text]
    ['part 0: loop']
    """
    version = checked_capability(capability)
    count = checked_integer(rows, "rows is the number of sequences of a call, a whole number from 1 on", 1)
    options = checked_options(precision, batch_invariant)
    memory = CudaMemory(EmulatedDevice(facts=known_facts(version)))
    schedule = checked_model(model, OF_KERNELS).program.schedule_for(EMULATED)
    found = kernels_of(schedule, memory, options, count)
    return {name: translated(code, version) for name, code in found}


def kernels_of(
    schedule: Schedule, memory: CudaMemory, options: CudaOptions, rows: int, before: str = ""
) -> Iterator[tuple[str, DeviceCode]]:
    """Yields a name and the code of each kernel of a schedule, for a call of some sequences.

    memory: of the device that kernels are chosen for. options: by which they are chosen too.
    before: the number of the part that the schedule is in, with a dot; "" for a whole model.
    """
    for index, part in enumerate(schedule.parts):
        if part.inner is not None:
            yield from kernels_of(part.inner, memory, options, rows, f"{before}{index}.")
        if part.plan is None:
            continue
        kernel = CudaKernel.of(part.plan, memory, options)
        stages = {**kernel.stages}
        chosen = None if kernel.is_idle else kernel.loop(rows)
        if chosen is not None and chosen.by_steps and kernel.of_step is not None:
            stages["step"] = kernel.of_step.stages["sequence"]
        elif chosen is not None:
            stages["loop"] = (DeviceStage(chosen.loop.code, (), ()),)
        for stage, codes in stages.items():
            own = [code.code for code in codes if not isinstance(code, ProductCode)]
            for place, code in enumerate(own):
                yield f"part {before}{index}: {stage}{f' {place}' if len(own) > 1 else ''}", code


def checked_capability(capability: Any) -> tuple[int, int]:
    """Checks a compute capability as text, such as "9.0"; returns its numbers."""
    found = re.fullmatch(r"(\d+)\.(\d)", capability) if isinstance(capability, str) else None
    if found is None:
        raise ArgumentError(
            "capability is the compute capability of a GPU as text, two numbers with a point, such as "
            f'"9.0" for an H100, not {short_repr(capability)}'
        )
    version = int(found[1]), int(found[2])
    if version < LOWEST:
        raise ArgumentError(
            f'capability is "8.0" or higher: GPUs of {capability} lack the products of tensor cores in tf32'
        )
    if capability not in CAPABILITIES:
        raise ArgumentError(
            f"capability is {capability!r}, and code is written for {', '.join(CAPABILITIES)}; that for "
            f"{CAPABILITIES[-1]} runs on later GPUs too"
        )
    return version


def emulate(model: Model, *arguments: Any, **options: Any) -> Any:
    """Returns the results of a call of a model, computed by its kernels for GPUs in an emulation on the CPU.

    The emulation runs every thread of every block, in a random order, so it is slow: it is for tests of
    kernels where there is no GPU.

    Args:
        model: Any model.
        *arguments: The arguments of its call.
        **options: Further arguments of its call, but for `engine`.

    Returns:
        The results, as the model itself returns them.

    Raises:
        InputError: For a value that is no model, for `engine=`, and for arguments that the model refuses.

    >>> import numpy as np
    >>> import stepnet as sn
    >>> import stepnet.cuda
    >>> rnn = sn.RNN(lambda x, h, p: (h + x, h + x), memory=2)
    >>> outputs, final = stepnet.cuda.emulate(rnn, np.ones((1, 3, 2), "float32"))
    >>> outputs[0, :, 0].tolist()
    [1.0, 2.0, 3.0]
    """
    if "engine" in options:
        raise InputError(
            "emulate takes no engine=, as it runs a model by 'cuda-emulated'; to run it with options of the "
            "engine, call the model: model(x, engine='cuda-emulated:tf32')"
        )
    return checked_model(model, OF_KERNELS)(*arguments, engine=EMULATED, **options)
