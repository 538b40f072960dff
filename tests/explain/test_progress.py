"""A bar of progress is drawn on the terminal that stderr is, and on nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pty = pytest.importorskip("pty", reason="the module pty is missing: no terminal can be made")

CODE = """
import sys
sys.modules["torch"] = sys.modules["keras"] = None  # nobody is asked who takes seconds to import
from stepnet.explain import bars
bars.PATIENCE = 0.0
from stepnet.cli.commands import main
main()
"""


def on_a_terminal(*arguments: object) -> tuple[str, str]:
    """The text that a command writes to stdout, and to the terminal of its stderr, without waiting."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"}
    command = [sys.executable, "-c", CODE, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower, env=environment) as process:
        os.close(follower)
        shown = b""
        try:
            while piece := os.read(leader, 1 << 16):
                shown += piece
        except OSError:  # all is read, and nobody holds the other end
            pass
        os.close(leader)
        assert process.stdout is not None
        text = process.stdout.read()
    assert process.returncode == 0, shown
    return text.decode(), shown.decode()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    layers = torch.nn.ModuleDict({name: torch.nn.GRU(8, 8) for name in ("one", "two", "three")})
    torch.save(layers.state_dict(), tmp_path / "model.pt")
    return tmp_path / "model.pt"


COMMANDS = {
    "convert": lambda model: ("convert", model, "--to", "keras", "-o", model.with_suffix(".npz"), "--verify"),
    "verify": lambda model: ("verify", model, "keras.gru"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_bar_is_drawn_on_a_terminal(model: Path, name: str):
    text, shown = on_a_terminal(*COMMANDS[name](model))
    assert "modules" in shown
    assert "\x1b[2K" in shown  # and taken away again
    assert "\x1b" not in text


@pytest.mark.parametrize("name", COMMANDS)
def test_with_json_nothing_is_drawn(model: Path, name: str):
    text, shown = on_a_terminal(*COMMANDS[name](model), "--json")
    assert shown == ""
    assert json.loads(text)
