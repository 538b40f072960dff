"""Copies of arrays of the host to a GPU by way of memory from which the GPU reads by itself.

The array is copied at once, so that it may change afterwards, and the copy to the GPU is done later, in the
order of the stream. Two halves of a buffer are used in turn; before a half is used again, its copies are
waited for.
"""

import ctypes
from collections.abc import Callable
from typing import Any

HALF = 2 << 20
"""The bytes of a half."""
LINE = 256
WITHOUT_TIME = 2
"""A property of events, which need not keep the time."""


class Staging:
    """A buffer for the copies of one device.

    call: calls a function of the driver by its name.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        """Allocates the buffer, and an event for each half."""
        self.call = call
        begin = ctypes.c_void_p()
        call("cuMemHostAlloc", ctypes.byref(begin), 2 * HALF, 0)
        assert begin.value is not None
        self.begin, self.half, self.used = begin.value, 0, 0
        self.events = list[int]()
        for _ in range(2):
            event = ctypes.c_void_p()
            call("cuEventCreate", ctypes.byref(event), WITHOUT_TIME)
            self.events.append(event.value or 0)
        self.waits = [False, False]

    def copy(self, target: int, source: int, count: int, stream: int) -> None:
        """Copies `count` bytes of the host, at the address `source`, to an address of the GPU, after the work
        that was given to the stream before. The bytes of the host may change afterwards.
        """
        done = 0
        while done < count:
            if self.used >= HALF:
                self.turn(stream)
            size = min(count - done, HALF - self.used)
            place = self.begin + self.half * HALF + self.used
            ctypes.memmove(place, source + done, size)
            self.call("cuMemcpyHtoDAsync_v2", target + done, place, size, stream)
            self.used += -(-size // LINE) * LINE
            done += size

    def turn(self, stream: int) -> None:
        """Begins the other half, when the GPU has read what is there."""
        self.call("cuEventRecord", self.events[self.half], stream)
        self.waits[self.half] = True
        self.half, self.used = 1 - self.half, 0
        if self.waits[self.half]:
            self.call("cuEventSynchronize", self.events[self.half])
