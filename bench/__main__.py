"""`python -m bench`: time stepnet beside other runtimes."""

import sys

import typer

from bench.runtimes.command import bench
from stepnet.errors import StepnetError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(bench)

if __name__ == "__main__":
    try:
        app(prog_name="python -m bench")
    except StepnetError as error:
        sys.exit(f"bench: {error}")
