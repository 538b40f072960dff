"""The kernels of a GPU: translated, loaded by the driver, and unloaded when no code needs them any more."""

import ctypes
from collections import deque
from typing import Any
from weakref import finalize

from stepnet.compiler.targets.cuda.device import DeviceCode, NotResidentError
from stepnet.compiler.targets.cuda.driver.facts import CLUSTERS
from stepnet.compiler.targets.cuda.driver.library import LOST, UNSUPPORTED_PTX
from stepnet.compiler.targets.cuda.ptx import translated
from stepnet.errors import DeviceError

MAX_SHARED, LARGE_CLUSTERS = 8, 14
"""Attributes of a kernel: its most bytes of dynamic shared memory, and clusters of more than 8 blocks."""
ERROR_LOG, ERROR_LOG_SIZE, LOG_BYTES = 5, 6, 8192
"""Options for the driver's translation of PTX: where it writes its errors, and how many bytes."""


class LoadedKernel:
    """A kernel on the GPU, with memory for its arguments, which each launch fills anew.

    module, handle: the driver's. values: the arguments. pointers: their addresses. codes: the number of codes
    that were launched as this kernel and still exist.
    """

    def __init__(self, module: int, handle: int, words: int) -> None:
        """Takes the driver's handles and the number of arguments."""
        self.module, self.handle, self.codes = module, handle, 0
        self.values = (ctypes.c_int64 * words)()
        first = ctypes.addressof(self.values)
        self.pointers = (ctypes.c_void_p * max(1, words))(*range(first, first + 8 * words, 8))


class LoadedKernels:
    """The kernels of a GPU. The caller of each method holds the lock of the device.

    by_key, by_code: the kernels by the digests of their codes, and by the identities of codes that exist.
    gone: the identities of codes that do not exist any more.
    """

    def __init__(self, device: Any) -> None:
        """Makes the table of the kernels of a device, a `CudaDevice`."""
        self.device = device
        self.by_key, self.by_code = dict[str, LoadedKernel](), dict[int, LoadedKernel]()
        self.gone = deque[int]()

    def of(self, code: DeviceCode) -> LoadedKernel:
        """Returns the kernel of a code: loaded before, that of an equal code, or loaded now."""
        if self.gone:
            self.forget_gone()  # first, as a new code may have the identity of one that is gone
        if (known := self.by_code.get(id(code))) is not None:
            return known
        kernel = self.by_key.get(code.key)
        if kernel is None:
            self.unload_unused()
            kernel = self.loaded(code)
        self.by_code[id(code)] = kernel
        kernel.codes += 1
        finalize(code, self.gone.append, id(code)).atexit = False
        return kernel

    def forget_gone(self) -> None:
        """Forgets codes that are gone, as noted by the garbage collector, which may run anywhere."""
        while self.gone:
            self.by_code.pop(self.gone.popleft()).codes -= 1

    def unload_unused(self) -> None:
        """Unloads the kernels of codes that no longer exist, once all work given so far is done. Unloads none
        while there are side streams, which may still run them.
        """
        if self.device.forks:
            return
        unused = {key: kernel for key, kernel in self.by_key.items() if not kernel.codes}
        if unused:
            self.device.synchronize(self.device.ordered())
        for key, kernel in unused.items():
            del self.by_key[key]
            self.device.call("cuModuleUnload", kernel.module)

    def loaded(self, code: DeviceCode) -> LoadedKernel:
        """Translates a kernel and loads it on the GPU."""
        self.device.refuse_capture(f"the kernel {code.name!r} cannot be loaded")
        if code.shared > self.device.facts.shared:
            raise DeviceError(
                f"the kernel {code.name!r} needs {code.shared} bytes of shared memory for each block, and "
                f"{self.device.facts.name} has {self.device.facts.shared}"
            )
        log = ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
        image = ctypes.c_char_p(translated(code, self.device.facts.capability).encode())
        module = ctypes.c_void_p()
        error = self.device.result("cuModuleLoadDataEx", ctypes.byref(module), image, 2, options, values)
        if error == UNSUPPORTED_PTX:
            raise DeviceError(
                f"the CUDA driver is too old for the kernel {code.name!r}: "
                f"{self.device.library.words(error)}; install a newer driver"
            )
        if error and error not in LOST:
            said = log.value.decode(errors="replace").strip()
            raise DeviceError(
                f"the CUDA driver refuses the kernel {code.name!r}: {self.device.library.words(error)}: "
                f"{said}"
            )
        if error:
            self.device.fail("cuModuleLoadDataEx", error)
        kernel = self.device.handle("cuModuleGetFunction", module, b"kernel")
        self.device.call("cuFuncSetAttribute", kernel, MAX_SHARED, code.shared)
        if code.exchange == "cluster" and code.group > CLUSTERS:
            self.device.call("cuFuncSetAttribute", kernel, LARGE_CLUSTERS, 1)
        self.by_key[code.key] = LoadedKernel(module.value or 0, kernel, code.words)
        return self.by_key[code.key]

    def too_large(self, code: DeviceCode, error: int) -> str:
        """Returns the message for a kernel whose blocks do not fit on the GPU."""
        cluster = f"clusters of {code.group} " if code.exchange == "cluster" else ""
        return (
            f"the kernel {code.name!r} cannot run on {self.device.facts.name} with {cluster}{needs_of(code)}"
            f": {self.device.library.words(error)}"
        )

    def not_resident(self, code: DeviceCode, kernel: int, blocks: int) -> NotResidentError:
        """Returns the error for a kernel whose blocks do not all run at once."""
        room = ctypes.c_int()
        sizes = kernel, code.threads, code.shared
        self.device.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(room), *sizes)
        most = room.value * self.device.facts.multiprocessors
        return NotResidentError(
            f"the kernel {code.name!r} needs {blocks} {needs_of(code)} that run at once, and "
            f"{self.device.facts.name} runs {most}: give fewer sequences per call",
            most if most < blocks else blocks // 2,
        )


def needs_of(code: DeviceCode) -> str:
    """Returns the resources that the blocks of a kernel need, for messages."""
    return f"blocks of {code.threads} threads and {code.shared} bytes of shared memory"
