"""Commands of stepnet in this process: what they print, and how they end."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from typer.main import get_command

import stepnet as sn
from stepnet.cli.commands import app

DATA = Path(sn.__file__).parent / "cli" / "data"
MODEL = DATA / "speaker_gru.safetensors"
VOWELS = DATA / "japanese_vowels.parquet"


COMMAND = get_command(app)  # to make the command takes as long as many a call


def stepnet(*arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    # Not by CliRunner: whether it keeps stderr apart from stdout depends on the version of click.
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as end:
        COMMAND.main([str(argument) for argument in arguments], "stepnet")
    code = end.value.code or 0
    assert isinstance(code, int), code
    return code, stdout.getvalue(), stderr.getvalue()


def refusal(*arguments: object) -> str:
    """The one line of a command that refuses."""
    code, stdout, stderr = stepnet(*arguments)
    assert (code, stdout) == (1, "")
    assert stderr.startswith("stepnet: ")
    assert stderr.count("\n") == 1
    return stderr.removeprefix("stepnet: ").rstrip()
