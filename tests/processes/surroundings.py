"""Runs commands of `stepnet`, each in a fork with surroundings of its own, and prints what each of them said.

stdin has a list of JSON: for each command its arguments, and the Python text that makes its surroundings. It
runs in the fork, ahead of the command; with `run = False` there is no command. stdout gets a list of
exit codes, and of what each wrote to stderr and stdout.
"""

import io
import json
import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import stepnet as sn
from stepnet.cli import commands

AHEAD = sn.build, sn.load  # imported ahead of the forks, which then need not


def said(arguments: list[str], surroundings: str) -> list[Any]:
    """Runs a command in this process; returns its exit code, and its texts on stderr and stdout."""
    stderr, stdout, code = io.StringIO(), io.StringIO(), 0
    with redirect_stderr(stderr), redirect_stdout(stdout):
        try:
            names: dict[str, Any] = {"run": True}
            exec(surroundings, names)
            sys.argv = [
                "stepnet",
                *(os.fsdecode(text.encode("utf-8", "surrogateescape")) for text in arguments),
            ]
            if names["run"]:
                commands.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
            if isinstance(ended.code, str):
                stderr.write(ended.code)
        except BaseException:
            code = 70
            traceback.print_exc(file=stderr)
    return [code, stderr.getvalue(), stdout.getvalue()]


def forked(arguments: list[str], surroundings: str) -> list[Any]:
    """Runs a command in a fork; returns its exit code, and its texts on stderr and stdout."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        result = said(arguments, surroundings)
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        result = json.load(pipe)
    os.waitpid(child, 0)
    return result


said(["show", "nowhere.onnx"], "")  # imports ahead of the forks what a command imports late
print(json.dumps([forked(*case) for case in json.loads(sys.stdin.buffer.read())]))
