"""A process as on Windows, as far as Linux on x86-64 can be one: `become()`, before stepnet is imported.

    constants and modules   those that Windows lacks are taken away, and `sys.platform` is "win32"
    libraries               kernel32, advapi32, ucrtbase and ntdll have the functions that stepnet asks for
    machine code            is generated for Windows, so with its calling convention; what calls it, and what
                            it calls, goes through a few instructions that move the arguments
    files                   cannot be renamed, replaced or removed while they are open

What this cannot show: that Windows' own functions do what their documentation says.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

from not_on_windows import MODULES, OS_NAMES

MISSING = {
    mmap: (
        "MAP_PRIVATE",
        "MAP_ANONYMOUS",
        "MAP_ANON",
        "MAP_SHARED",
        "MADV_HUGEPAGE",
        "PROT_READ",
        "PROT_EXEC",
    ),
    os: OS_NAMES,
}
"""The names of each module that Windows lacks."""
TRIPLE = "x86_64-pc-windows-msvc-elf"
TICKS = 10**9
USER = "S-1-5-21-7-1001"
ACCESS = [f"O:{USER}D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{USER})"]
"""The access list of all folders; a script may change it."""
LIBC = ctypes.CDLL(None)
EVERYTHING = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
KEPT: list[Any] = []


# ---- instructions ------------------------------------------------------------------------------------------


def executable(code: bytes) -> int:
    """The address of instructions."""
    memory = mmap.mmap(-1, 4096, prot=EVERYTHING)
    memory.write(code)
    KEPT.append(memory)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def address_in(function: Any) -> int:
    """The address of a function of ctypes."""
    KEPT.append(function)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def to_windows(address: int) -> int:
    """A function of Linux' convention with one argument, which calls one of Windows' convention."""
    # mov rcx, rdi; sub rsp, 40; mov rax, address; call rax; add rsp, 40; ret
    return executable(
        b"\x48\x89\xf9\x48\x83\xec\x28\x48\xb8" + struct.pack("<Q", address) + b"\xff\xd0\x48\x83\xc4\x28\xc3"
    )


def from_windows(address: int) -> int:
    """A function of Windows' convention, which calls one of Linux' convention with up to four arguments. It
    keeps the registers that only Windows has functions keep: rdi, rsi, xmm6 to xmm15.
    """
    save, restore = b"", b""
    for number in range(6, 16):
        prefix, register = (b"\x44", number - 8) if number >= 8 else (b"", number)
        place = bytes([0x84 | register << 3, 0x24]) + struct.pack("<I", 16 * (number - 6))
        save += prefix + b"\x0f\x11" + place  # movups [rsp + place], xmm
        restore += prefix + b"\x0f\x10" + place
    size = struct.pack("<I", 0xA8)
    return executable(
        b"\x57\x56\x48\x81\xec"  # push rdi; push rsi; sub rsp, size
        + size
        + save
        # mov rdi, rcx; mov rsi, rdx; mov rdx, r8; mov rcx, r9; mov rax, address; call rax
        + b"\x48\x89\xcf\x48\x89\xd6\x4c\x89\xc2\x4c\x89\xc9\x48\xb8"
        + struct.pack("<Q", address)
        + b"\xff\xd0"
        + restore
        + b"\x48\x81\xc4"  # add rsp, size; pop rsi; pop rdi; ret
        + size
        + b"\x5e\x5f\xc3"
    )


# ---- libraries ---------------------------------------------------------------------------------------------


def create_semaphore(*_: Any) -> int:
    memory = LIBC.malloc
    memory.restype = ctypes.c_void_p
    where = memory(64)
    LIBC.sem_init(ctypes.c_void_p(where), 0, 0)
    return where


def frequency(result: int) -> int:
    ctypes.c_int64.from_address(result).value = TICKS
    return 1


def texts(result: int, text: str) -> int:
    """Gives a new text, as Windows does."""
    buffer = ctypes.create_unicode_buffer(text)
    KEPT.append(buffer)
    ctypes.c_void_p.from_address(result).value = ctypes.addressof(buffer)
    return 1


def token_information(token: int, kind: int, memory: int | None, size: int, needed: int) -> int:
    ctypes.c_uint32.from_address(needed).value = 64
    if not memory:
        return 0
    ctypes.c_void_p.from_address(memory).value = 0x515
    return 1


def assign(place: int, value: int) -> int:
    ctypes.c_void_p.from_address(place).value = value
    return 1


def of_python(function: Callable[..., int], arguments: int) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * arguments)(function)


def sort(base: int, count: int | None, size: int, compare: int) -> int:
    # mov rcx, rdi; mov rdx, rsi; sub rsp, 40; mov rax, compare; call rax; add rsp, 40; ret
    code = b"\x48\x89\xf9\x48\x89\xf2\x48\x83\xec\x28\x48\xb8" + struct.pack("<Q", compare)
    address = executable(code + b"\xff\xd0\x48\x83\xc4\x28\xc3")
    LIBC.qsort(*map(ctypes.c_void_p, (base, count, size, address)))
    return 0


def named_security(name: int, kind: int, what: int, *others: int) -> int:
    assign(others[-1], 0xD5C)
    return 0


def libraries() -> dict[str, dict[str, Any]]:
    """The functions of each library, as ctypes gives them."""

    def function(address: int) -> Any:
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)

    def of_c(name: str, library: Any = LIBC) -> Any:
        return function(from_windows(address_in(library[name])))

    # rdtsc; shl rdx, 32; or rax, rdx; mov [rcx], rax; mov eax, 1; ret
    counter = executable(b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\x48\x89\x01\xb8\x01\x00\x00\x00\xc3")
    maths = ctypes.CDLL("libm.so.6")
    names = "ceil", "ceilf", "floor", "floorf", "fmod", "fmodf", "rint", "rintf"
    return {
        "kernel32": {
            "QueryPerformanceFrequency": of_python(frequency, 1),
            "QueryPerformanceCounter": function(counter),
            "Sleep": of_c("sched_yield"),
            "SwitchToThread": of_c("sched_yield"),
            "CreateSemaphoreW": of_python(create_semaphore, 4),
            "WaitForSingleObject": of_c("sem_wait"),
            "ReleaseSemaphore": of_c("sem_post"),
            "GetCurrentProcess": of_python(lambda: -1, 0),
            "LocalFree": of_python(lambda _: 0, 1),
            "CloseHandle": of_python(lambda _: 1, 1),
        },
        "advapi32": {
            "GetNamedSecurityInfoW": of_python(named_security, 8),
            "ConvertSecurityDescriptorToStringSecurityDescriptorW": of_python(
                lambda descriptor, revision, what, text, length: texts(text, ACCESS[0]), 5
            ),
            "OpenProcessToken": of_python(lambda process, what, token: assign(token, 0x70CE), 3),
            "GetTokenInformation": of_python(token_information, 5),
            "ConvertSidToStringSidW": of_python(lambda user, text: texts(text, USER), 2),
        },
        "ucrtbase": {
            "qsort": function(from_windows(address_in(of_python(sort, 4)))),
            **{name: of_c(name, maths) for name in names},
        },
        # ret: Linux makes room on the stack by itself
        "ntdll": {
            "__chkstk": function(executable(b"\xc3")),
            "memcpy": of_c("memcpy"),
            "memset": of_c("memset"),
        },
    }


class Libraries:
    """Stands for `ctypes.CDLL`."""

    def __init__(self) -> None:
        self.known, self.real = libraries(), ctypes.CDLL

    def __call__(self, name: Any, *rest: Any, **named: Any) -> Any:
        if name is None:
            raise TypeError("argument of type 'NoneType' is not iterable")  # as on Windows
        return self.known[name] if name in self.known else self.real(name, *rest, **named)


# ---- files -------------------------------------------------------------------------------------------------

TEMPORARY = 1 << 28
OWN: dict[int, str] = {}
"""The files that are removed when they are closed, by descriptor."""


def check_closed(path: Any) -> None:
    """Raises `PermissionError` if this process has a file open, as Windows does where it is renamed."""
    try:
        status = os.stat(path)
    except OSError:
        return
    for number in os.listdir("/proc/self/fd"):
        try:
            there = os.fstat(int(number))
        except OSError:
            continue
        if os.path.samestat(there, status) and not os.path.isdir(path):
            raise PermissionError(errno.EACCES, "another process uses the file", os.fspath(path))


def as_files_of_windows() -> None:
    """Makes the functions of `os` treat open files as Windows does, and know its flags."""
    os.O_TEMPORARY, os.O_NOINHERIT, os.O_BINARY = TEMPORARY, 0, 0  # pyright: ignore
    real = {name: getattr(os, name) for name in ("open", "close", "replace", "rename", "unlink", "remove")}

    def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(
                errno.EACCES, "Permission denied", os.fspath(path)
            )  # folders are not opened
        number = real["open"](path, flags & ~TEMPORARY, *rest, **named)
        if flags & TEMPORARY:
            OWN[number] = os.path.abspath(path)
        return number

    def close(number: int) -> None:
        real["close"](number)
        if number in OWN:
            real["unlink"](OWN.pop(number))

    def moved(name: str) -> Callable[..., None]:
        def move(source: Any, target: Any, **named: Any) -> None:
            check_closed(source)
            check_closed(target)
            real[name](source, target, **named)

        return move

    def unlink(path: Any, **named: Any) -> None:
        check_closed(path)
        real["unlink"](path, **named)

    os.open, os.close, os.unlink, os.remove = opened, close, unlink, unlink  # pyright: ignore
    os.replace, os.rename = moved("replace"), moved("rename")


# ---- the process -------------------------------------------------------------------------------------------


class WindowsCode:
    """Stands for ctypes where Python calls machine code: functions that move the argument."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes, name)

    def CFUNCTYPE(self, result: Any, *arguments: Any) -> Callable[[int], Any]:  # noqa: N802 - ctypes' name
        return lambda address: ctypes.CFUNCTYPE(result, *arguments)(to_windows(address))


def become() -> None:
    """Makes this process as one on Windows, in which stepnet is imported and calls its machine code."""
    import concurrent.futures  # noqa: F401 - what asks for the system when it is imported
    import logging  # noqa: F401
    import shutil  # noqa: F401
    import subprocess  # noqa: F401
    import tempfile  # noqa: F401

    import llvmlite.binding as llvm
    import ml_dtypes  # noqa: F401
    import numpy.testing  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import rich.console  # noqa: F401
    import safetensors.numpy  # noqa: F401
    from llvmlite import ir  # noqa: F401
    from llvmlite.binding import ffi

    assert threading.active_count() == 1
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.Target.from_default_triple = lambda: llvm.Target.from_triple(TRIPLE)  # pyright: ignore
    binding = ffi.get_library_name()
    ffi.get_library_name = lambda: binding
    found = Libraries()
    as_files_of_windows()
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] - so that its import fails
    os.supports_dir_fd = set()
    ctypes.CDLL = found  # pyright: ignore[reportAttributeAccessIssue]
    sys.platform = "win32"

    from stepnet.compiler.targets.cpu.machine import machine_code

    machine_code.ctypes = WindowsCode()  # pyright: ignore[reportAttributeAccessIssue]
