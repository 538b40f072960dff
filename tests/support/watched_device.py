"""An emulated device that counts how often recorded work is given again, and the most bytes in use."""

from collections.abc import Callable, Sequence
from typing import Any

from stepnet.compiler.targets.cuda import DeviceArray, DeviceWork, EmulatedDevice
from stepnet.compiler.values import leaves


def bits(results: Any) -> list[bytes]:
    """The bytes of all arrays of results, of the host or of a device."""
    arrays = [getattr(leaf, "values", leaf) for leaf in leaves(results)]
    return [(each.numpy() if isinstance(each, DeviceArray) else each).tobytes() for each in arrays]


class WatchedDevice(EmulatedDevice):
    """The device. again: how often work was given again. most: the most bytes in use so far."""

    again = most = 0

    def repeated(self, calls: Sequence[DeviceWork], kept: object) -> Callable[[Sequence[int]], None]:
        run = super().repeated(calls, kept)

        def counted(memory: Sequence[int]) -> None:
            self.again += 1
            run(memory)

        return counted

    def allocate(self, count: int) -> int:
        made = super().allocate(-(-count // 256) * 256)
        self.most = max(self.most, self.used())
        return made

    def used(self) -> int:
        return sum(each.count for each in self.memory.values())

    def repeats(self, run: Callable[[], Any]) -> tuple[list[bytes], int]:
        """The bytes of the results of a run, and how often it gave recorded work again."""
        before = self.again
        return bits(run()), self.again - before
