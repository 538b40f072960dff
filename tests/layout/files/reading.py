"""Reads each file that it is told of in a process of its own: how much memory that took, and what is wrong.

    python reading.py < paths > answers

Processes are forked from this one, which has all readers loaded; how large each grew, the kernel says.
"""

import os
import sys

import msgpack  # noqa: F401
import onnx  # noqa: F401

from stepnet.errors import StepnetError
from stepnet.layout.files import FORMATS, read


def peak() -> int:
    """The largest size that this process had."""
    with open("/proc/self/status") as lines:
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def answer(path: str) -> str:
    """By how many bytes reading a file makes this process larger, and what is wrong with the file."""
    before, said = peak(), ""
    try:
        read(path)
    except StepnetError as error:
        said = str(error)
    return f"{peak() - before} {said}"


if __name__ == "__main__":
    loaded = [form.code for form in FORMATS]
    for line in sys.stdin:
        process = os.fork()
        if not process:
            print(answer(line.removesuffix("\n")), flush=True)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)
