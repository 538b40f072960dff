"""The library of the CUDA driver, called through ctypes: the functions that are used, and their errors."""

import ctypes
import os
import sys
from typing import Any

from stepnet.errors import DeviceError

NAMES = {"win32": "nvcuda.dll"}
LIBRARY = NAMES.get(sys.platform, "libcuda.so.1")
LOWEST = 12000
"""The lowest version of the driver, as it gives it: 12.0, the first that reads the PTX that is written."""
NO_DRIVER = "there is no CUDA driver here"
"""The beginning of the message where there is no GPU, or none with a driver."""
INSTEAD = 'use the engine "llvm", which runs on this processor'

FORKED = (
    "this process was forked from one that uses the GPU, which CUDA does not allow: start processes by "
    '"spawn", or use the GPU only in the new ones'
)

POINTER, WORD, NUMBER, SIZE, ADDRESS = (
    ctypes.c_void_p,
    ctypes.c_uint,
    ctypes.c_int,
    ctypes.c_size_t,
    ctypes.c_uint64,
)
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (WORD,),
    "cuDriverGetVersion": (POINTER,),
    "cuGetErrorName": (NUMBER, POINTER),
    "cuGetErrorString": (NUMBER, POINTER),
    "cuDeviceGetCount": (POINTER,),
    "cuDeviceGet": (POINTER, NUMBER),
    "cuDeviceGetName": (POINTER, NUMBER, NUMBER),
    "cuDeviceGetAttribute": (POINTER, NUMBER, NUMBER),
    "cuDevicePrimaryCtxRetain": (POINTER, NUMBER),
    "cuCtxGetCurrent": (POINTER,),
    "cuCtxPushCurrent_v2": (POINTER,),
    "cuCtxPopCurrent_v2": (POINTER,),
    "cuMemGetInfo_v2": (POINTER, POINTER),
    "cuMemAlloc_v2": (POINTER, SIZE),
    "cuMemFree_v2": (ADDRESS,),
    "cuMemPoolCreate": (POINTER, POINTER),
    "cuMemPoolSetAttribute": (POINTER, NUMBER, POINTER),
    "cuMemPoolTrimTo": (POINTER, SIZE),
    "cuMemAllocFromPoolAsync": (POINTER, SIZE, POINTER, POINTER),
    "cuMemFreeAsync": (ADDRESS, POINTER),
    "cuMemHostAlloc": (POINTER, SIZE, WORD),
    "cuMemcpyHtoDAsync_v2": (ADDRESS, POINTER, SIZE, POINTER),
    "cuMemcpyDtoHAsync_v2": (POINTER, ADDRESS, SIZE, POINTER),
    "cuMemcpyDtoDAsync_v2": (ADDRESS, ADDRESS, SIZE, POINTER),
    "cuMemsetD8Async": (ADDRESS, ctypes.c_ubyte, SIZE, POINTER),
    "cuStreamCreate": (POINTER, WORD),
    "cuStreamSynchronize": (POINTER,),
    "cuStreamIsCapturing": (POINTER, POINTER),
    "cuStreamBeginCapture_v2": (POINTER, NUMBER),
    "cuStreamEndCapture": (POINTER, POINTER),
    "cuGraphInstantiateWithFlags": (POINTER, POINTER, ADDRESS),
    "cuGraphLaunch": (POINTER, POINTER),
    "cuGraphDestroy": (POINTER,),
    "cuGraphExecDestroy": (POINTER,),
    "cuStreamWaitEvent": (POINTER, POINTER, WORD),
    "cuEventCreate": (POINTER, WORD),
    "cuEventRecord": (POINTER, POINTER),
    "cuEventSynchronize": (POINTER,),
    "cuModuleLoadDataEx": (POINTER, POINTER, WORD, POINTER, POINTER),
    "cuModuleUnload": (POINTER,),
    "cuModuleGetFunction": (POINTER, POINTER, ctypes.c_char_p),
    "cuFuncSetAttribute": (POINTER, NUMBER, NUMBER),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER, POINTER, NUMBER, SIZE),
    "cuLaunchKernel": (POINTER, *[WORD] * 7, POINTER, POINTER, POINTER),
    "cuLaunchCooperativeKernel": (POINTER, *[WORD] * 7, POINTER, POINTER),
}
"""The types of the arguments of each function that is called."""

OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED, STUB, NO_DEVICE = 2, 3, 4, 34, 100
TOO_MANY_RESOURCES, GRID_TOO_LARGE, CLUSTER_TOO_LARGE = 701, 720, 912
UNSUPPORTED_PTX = 222
LOST = {
    700: "read or wrote an address that is not its own",
    702: "took longer than the system allows",
    709: "ran in a context that is destroyed",
    710: "stopped at an assertion",
    714: "overflowed the stack of the hardware",
    715: "came to an instruction that the GPU does not have",
    716: "used an address that is not aligned",
    717: "used an address of the wrong memory",
    718: "jumped to an address without code",
    719: "failed",
}
"""The failures of a kernel, by the error after which the driver refuses everything else in the process."""


class CudaLibrary:
    """The driver's library.

    functions: the functions of `FUNCTIONS`, by name, which return the driver's error.
    """

    def __init__(self, library: Any) -> None:
        """Takes the loaded library. Raises `DeviceError` if it lacks a function, as that of an old driver."""
        self.functions = dict[str, Any]()
        for name, types in FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise DeviceError(
                    f"the CUDA driver here has no function {name}: install a driver for CUDA 12.0 or later; "
                    f"or {INSTEAD}"
                ) from None
            function.argtypes, function.restype = types, NUMBER
            self.functions[name] = function

    def result(self, name: str, *arguments: Any) -> int:
        """Calls a function; returns the driver's error, 0 for none."""
        return self.functions[name](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function. Raises `DeviceError` with the driver's words if it fails."""
        if error := self.result(name, *arguments):
            raise DeviceError(f"the CUDA driver says: {self.words(error)} ({name})")

    def words(self, error: int) -> str:
        """Returns the driver's description of an error, with its name and number."""
        texts = list[str]()
        for function in ("cuGetErrorString", "cuGetErrorName"):
            text = ctypes.c_char_p()
            self.result(function, error, ctypes.byref(text))
            texts.append((text.value or b"unknown").decode())
        return f"{texts[0]}, {texts[1]}, error {error}"

    def number(self, name: str, *arguments: Any) -> int:
        """Calls a function whose first argument is the address of an integer; returns the integer."""
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def handle(self, name: str, *arguments: Any) -> int:
        """Calls a function whose first argument is the address of a handle; returns it, 0 for none."""
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value or 0


def started(library: Any) -> CudaLibrary:
    """Initialises the loaded driver. Raises `DeviceError` if it is too old, or finds no GPU."""
    made = CudaLibrary(library)
    version = made.number("cuDriverGetVersion")
    if version < LOWEST:
        raise DeviceError(
            f"the CUDA driver here is for CUDA {version_text(version)}, and stepnet needs one for "
            f"{version_text(LOWEST)} or later: install a newer driver; or {INSTEAD}"
        )
    error = made.result("cuInit", 0)
    if error in (NO_DEVICE, STUB):
        raise DeviceError(f"the CUDA driver finds no GPU here: {made.words(error)}; {INSTEAD}")
    if error == NOT_INITIALIZED:
        raise DeviceError(FORKED)
    if error:
        raise DeviceError(f"the CUDA driver cannot start: {made.words(error)}; {INSTEAD}")
    return made


def version_text(version: int) -> str:
    """Returns a version of CUDA as people write it.

    >>> version_text(12040)
    '12.4'
    """
    return f"{version // 1000}.{version % 1000 // 10}"


def cuda_library() -> CudaLibrary:
    """Returns the driver's library, loaded and initialised once. Raises `DeviceError` if there is no driver,
    if it is too old or finds no GPU, and in a process that was forked after it was loaded.
    """
    process = os.getpid()
    if process not in LOADED:
        if LOADED:
            raise DeviceError(FORKED)
        LOADED[process] = started(loaded())
    return LOADED[process]


LOADED = dict[int, CudaLibrary]()
"""The library by the number of the process that loaded it: this one, or the one that it was forked from."""


def loaded(name: str = LIBRARY) -> Any:
    """Loads the driver's library, by the name of its file. Raises `DeviceError` if there is none."""
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise DeviceError(
            f"{NO_DRIVER}: {error}; run on a machine with an NVIDIA GPU and its driver, or {INSTEAD}"
        ) from None
