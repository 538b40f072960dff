"""Who may open a folder on Windows: its owner and its access list, as Windows writes them in text.

    O:S-1-5-21-7-1001 G:... D:PAI(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;S-1-5-21-7-1001)
    owner                   the access list: kind; inheritance; rights; ; ; whom it permits

The form is the "security descriptor string format" of Microsoft's documentation. A folder is private if the
user owns it, and nobody else but the system and its administrators is permitted anything.
"""

import ctypes
import errno
import os
import re
from functools import cache
from typing import Any

APPS = re.compile(r"AC|S-1-15-[23]-[0-9-]+")
"""Packages of apps and their capabilities. They let in no other user: an app passes the user's check too."""
ADMINISTRATORS = ("SY", "BA", "S-1-5-18", "S-1-5-32-544")
"""The system and its administrators, who may do everything in any case."""
OWNER = ("OW", "CO", "S-1-3-4", "S-1-3-0")
"""The names of a folder's owner in its access list."""
LOCAL_ADMINISTRATOR = "LA"
"""The short name of the user whose identifier ends in -500."""
DESCRIPTOR = re.compile(
    r"O:(?P<owner>S-[0-9-]+|[A-Z]{2})(?:G:(?:S-[0-9-]+|[A-Z]{2}))?D:[A-Z]*(?P<entries>.*)"
)
ENTRY = re.compile(r"\(([^;()]*)(?:;[^;()]*){4};([^;()]*)\)")
ENTRIES = re.compile(f"(?:{ENTRY.pattern})+")
FILE_OBJECT, OWNER_AND_LIST, REVISION = 1, 1 | 4, 1
TOKEN_QUERY, TOKEN_USER = 8, 1


def refusal(text: str, user: str) -> str | None:
    """Returns the reason why a folder is not private to a user; None if it is.

    text: owner and access list of the folder, as Windows writes them. user: the user's identifier.

    >>> refusal("O:S-1-5-21-7-1001D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;S-1-5-21-7-1001)", "S-1-5-21-7-1001")
    >>> refusal("O:S-1-5-21-7-1001D:(A;;0x1200a9;;;BU)", "S-1-5-21-7-1001")
    'is open to others (BU); choose a folder in your profile'
    """
    parts = DESCRIPTOR.fullmatch(text)
    entries = ENTRIES.fullmatch(parts["entries"]) if parts else None
    if parts is None or entries is None:  # a missing list permits everything
        return "has no access list that can be read; choose a folder in your profile"
    own = {user, LOCAL_ADMINISTRATOR} if user.endswith("-500") else {user}
    if parts["owner"] not in own.union(ADMINISTRATORS):
        return f"belongs to user {parts['owner']}, not to {user}"
    permitted = [whom for kind, whom in ENTRY.findall(parts["entries"]) if kind != "D"]
    known = own.union(ADMINISTRATORS, OWNER)
    others = sorted({whom for whom in permitted if whom not in known and not APPS.fullmatch(whom)})
    if others:
        return f"is open to others ({', '.join(others)}); choose a folder in your profile"
    return None


def why_open(path: str) -> str | None:
    """Returns why other users may open a folder, or replace it by another one; None if they may not.

    path: the folder. The folder that it lies in is asked too, whose access would permit to replace it.
    """
    try:
        for folder in (path, os.path.dirname(path)):
            if reason := refusal(security_text(folder), current_user()):
                return f"{folder} {reason}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


def called(library: str, name: str, *arguments: Any) -> int:
    """Calls a function of Windows; returns its integer. library: "advapi32" or "kernel32"."""
    function = ctypes.CDLL(library)[name]
    function.restype = ctypes.c_ssize_t if name == "GetCurrentProcess" else ctypes.c_int
    return function(*arguments)


def check(has_succeeded: int | bool) -> None:
    """Raises `OSError` if a function of Windows has returned that it did not succeed."""
    if not has_succeeded:
        raise OSError(errno.EACCES, "Windows does not tell who may open it")


def text_and_free(text: ctypes.c_wchar_p) -> str:
    """Returns a text that Windows has allocated, and frees it."""
    value = text.value or ""
    called("kernel32", "LocalFree", text)
    return value


def security_text(path: str) -> str:
    """Reads the owner and the access list of a folder, as text in the form that Windows writes them. Raises
    `OSError` if Windows does not give them.
    """
    descriptor, text = ctypes.c_void_p(), ctypes.c_wchar_p()
    what = ctypes.c_wchar_p(path), FILE_OBJECT, OWNER_AND_LIST, None, None, None, None
    check(not called("advapi32", "GetNamedSecurityInfoW", *what, ctypes.byref(descriptor)))
    try:
        arguments = descriptor, REVISION, OWNER_AND_LIST, ctypes.byref(text), None
        check(called("advapi32", "ConvertSecurityDescriptorToStringSecurityDescriptorW", *arguments))
    finally:
        called("kernel32", "LocalFree", descriptor)
    return text_and_free(text)


@cache
def current_user() -> str:
    """Returns the identifier of the user of this process on Windows, such as S-1-5-21-7-1001; raises
    `OSError` if it cannot be read.
    """
    token, size, text = ctypes.c_void_p(), ctypes.c_uint32(), ctypes.c_wchar_p()
    process = ctypes.c_void_p(called("kernel32", "GetCurrentProcess"))
    check(called("advapi32", "OpenProcessToken", process, TOKEN_QUERY, ctypes.byref(token)))
    try:
        called("advapi32", "GetTokenInformation", token, TOKEN_USER, None, 0, ctypes.byref(size))
        memory = ctypes.create_string_buffer(max(size.value, ctypes.sizeof(ctypes.c_void_p)))
        check(
            called(
                "advapi32", "GetTokenInformation", token, TOKEN_USER, memory, len(memory), ctypes.byref(size)
            )
        )
        user = ctypes.c_void_p.from_buffer(memory)  # the first field points to the identifier
        check(called("advapi32", "ConvertSidToStringSidW", user, ctypes.byref(text)))
    finally:
        called("kernel32", "CloseHandle", token)
    return text_and_free(text)
