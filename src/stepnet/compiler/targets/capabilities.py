"""Capabilities that only some engines have, as protocols: totals, low precision, threads, devices, addresses,
and kernels that they choose by size.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from stepnet.compiler.net.ir import Node
from stepnet.compiler.plan.load import CallSize, Load, Machine
from stepnet.compiler.plan.passes.narrow import narrow_weights
from stepnet.compiler.plan.plan import Plan
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets.base import Array, Engine, OwnedMemory
from stepnet.compiler.values.records import dataclass


@dataclass(frozen=True)
class LowPrecisionCell:
    """Implementation in low precision (int8 or bfloat16) that an engine has for a recurrence.

    reads: the positions of the sequences that need a quantization scale; empty if none does.
    text: its description, for the user.
    """

    reads: tuple[int, ...]
    text: str


class TotalEngine(Engine, Protocol):
    """Engine that also computes totals, so that another engine can leave parts of a schedule to it."""

    def total(self, node: Node, operands: Sequence[Array]) -> Array:
        """Computes the value of a node that combines all rows, such as the gradient of a weight."""
        ...


@runtime_checkable
class LowEngine(Engine, Protocol):
    """Engine that can run recurrences in the precision (such as int8) that their nodes request."""

    def cell(self, plan: Plan) -> LowPrecisionCell | str:
        """Returns the engine's low-precision implementation of a recurrence, or text with why not."""
        ...


@runtime_checkable
class SharedEngine(Engine, Protocol):
    """Engine that divides a call among threads by estimated times. Explanations then show the estimates."""

    def machine(self) -> Machine:
        """Returns the rates and cache sizes of this processor, from which the time of a call is estimated."""
        ...

    def threads(self) -> int:
        """Returns the number of threads that a call may use."""
        ...

    def load(self, plan: Plan) -> Load:
        """Returns the work and memory traffic of a plan's steps, which determine its time."""
        ...

    def code_for(self) -> str | None:
        """Describes the instruction set of the generated code for the user; None for this machine's own."""
        ...


@runtime_checkable
class DeviceEngine(Engine, Protocol):
    """Engine that takes tensors on other devices than the CPU where they lie."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The types of these devices by PyTorch's names, such as "cuda"."""
        ...


@runtime_checkable
class KernelEngine(Engine, Protocol):
    """Engine that chooses kernels by the size of a call. Explanations then show the kernels."""

    def kernels(self, plan: Plan, size: CallSize) -> list[tuple[str, str]]:
        """Describes the kernels of a plan for calls of a size: a name and a text for each fact."""
        ...

    def early_ends(self, schedule: Schedule, flag: int, size: CallSize) -> list[tuple[str, str]]:
        """Describes likewise the kernels of calls of a schedule whose sequences may end early, and how often
        the loop is launched. flag: the position of the flag that ends them among the memories of its net.
        """
        ...

    @property
    def stand_in(self) -> str:
        """The name of an engine that takes the same calls if there is a device: its own if there is one."""
        ...

    def beside(self, schedule: Schedule, size: CallSize) -> list[tuple[tuple[int, ...], str]]:
        """Describes parts that may run at the same time, in calls of a size: (their places, the way)."""
        ...

    def parts(self, schedule: Schedule, size: CallSize) -> list[tuple[str, str]]:
        """Describes the time of each part of a schedule, by its number, and of all, in calls of a size."""
        ...


@runtime_checkable
class AddressEngine(DeviceEngine, Protocol):
    """Engine that takes arrays on its devices by their addresses, and leaves its results there."""

    @property
    def number(self) -> int:
        """The number of its device among those of the type."""
        ...

    def array_at(self, address: int, shape: tuple[int, ...], dtype: str, owner: object) -> Any:
        """Returns a C-contiguous array on the device from the address of its first byte. owner: the object
        that keeps the memory allocated.
        """
        ...

    def array_of(self, value: Any) -> Any | None:
        """Returns another library's array as calls take it, if it lies on the engine's device; else None."""
        ...

    def on_stream(
        self, stream: int, allocate: "Callable[[int], OwnedMemory]"
    ) -> "AbstractContextManager[None]":
        """Context in which calls of this thread run on a stream of the device, by the driver's handle.
        allocate: allocates the memory of results, a number of bytes; takes back what is not referred to.
        """
        ...


def narrow_cell(plan: Plan) -> LowPrecisionCell | str:
    """Describes how the recurrence of a plan (the operations of a net in their order) runs with weights in
    fewer bits, or returns as text why it cannot.
    """
    count = narrow_weights(plan.traced)
    if not count:
        return "it has no product of float32 values with parameters"
    return LowPrecisionCell((), f"{count:,} weights in its products")
