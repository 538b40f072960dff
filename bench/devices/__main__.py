"""`python -m bench.devices NAME`: figures of programs for devices, beside those of other libraries."""

import sys
from importlib import import_module

import typer

from stepnet.errors import StepnetError

COMMANDS = {
    "lstm": "bench.devices.lstm",
    "interpreter": "bench.devices.interpreter",
    "accuracy": "bench.devices.accuracy",
    "rnnoise": "bench.devices.rnnoise",
    "examples": "bench.devices.examples",
    "browser": "bench.devices.browser",
    "weights": "bench.devices.weights",
}
"""The module of each command; its function `command` has the options."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
for name, module in COMMANDS.items():
    app.command(name)(import_module(module).command)

if __name__ == "__main__":
    try:
        app(prog_name="python -m bench.devices")
    except StepnetError as error:
        sys.exit(f"bench.devices: {error}")
