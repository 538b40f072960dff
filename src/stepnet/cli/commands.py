"""The command line: `stepnet demo`, `show`, `convert`, `verify`, `layouts`, `explain`, `run`, `build` ...

Exit codes: 0 success; 1 refused or wrong input, with one line on stderr; 2 wrong usage; 130 stopped by
Ctrl-C. With --json a command writes one JSON object to stdout, and nothing else. If stdout is closed, as
behind `| head`, a command ends with code 1 and without a message.
"""

import errno
import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stepnet.cli.build import build
from stepnet.cli.conversion import convert, verify
from stepnet.cli.description import explain, layouts, show
from stepnet.cli.installation import cache, demo, doctor, tune
from stepnet.cli.run import run
from stepnet.compiler.values.packages import TYPER
from stepnet.compiler.values.version import __version__
from stepnet.errors import StepnetError

COMMANDS = demo, show, convert, verify, layouts, explain, run, build, doctor, tune, cache
"""The commands in the order of `stepnet --help`."""


WRITING = {errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT, errno.EINVAL}
"""The errors that writing to stdout has: it is closed (EINVAL on Windows), or what it writes to is full."""


class Commands(TyperGroup):
    """The group of all commands of `stepnet`, which prints a `StepnetError` as one line, with exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command of the command line; turns a `StepnetError` into a line and exit code 1."""
        try:
            return super().invoke(ctx)
        except StepnetError as error:
            lines = [line.strip() for line in str(error).splitlines()]
            typer.echo(f"stepnet: {'; '.join(line for line in lines if line)}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="A compiler for recurrent networks: one step as equations in, machine code for whole sequences out.",
)


def main() -> None:
    """Runs `stepnet` with the arguments of the process, and handles a stdout that is closed, full, or cannot
    encode some characters, which are then escaped.
    """
    if TYPER.older(typer.__version__):  # `stepnet run` would print the version, and end with code 0
        sys.exit(f"stepnet: {TYPER.too_old(typer.__version__)}: {TYPER.command}")
    try:
        try:
            escape_unencodable(sys.stdout)
            app()
        finally:
            if sys.stdout is not None:  # None if the process was started without stdout
                sys.stdout.flush()
    except OSError as error:
        is_of_stdout = error.filename is None and error.errno in WRITING
        if not is_of_stdout or sys.stdout is None:
            raise
        # The interpreter would write the rest of stdout at its exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            typer.echo(f"stepnet: stdout cannot be written: {error.strerror}", err=True)
        sys.exit(1)


def escape_unencodable(stdout: Any) -> None:
    """Lets stdout escape characters that its encoding lacks, as that of a locale without UTF-8 does."""
    if isinstance(stdout, TextIOWrapper) and stdout.encoding.lower() != "utf-8":
        stdout.reconfigure(errors="backslashreplace")  # which writes what is buffered


def show_version(asked: bool) -> None:
    """Prints the version and exits, if the option --version was given (`asked`)."""
    if asked:
        typer.echo(f"stepnet {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
    most: Annotated[
        int | None,
        typer.Option(
            "--most",
            metavar="BYTES",
            min=1,
            help="The most memory that reading a file may take; by default 64 MiB and 8 times its size.",
        ),
    ] = None,
) -> None:
    """Handles the options before the command: --version, and --most for the memory that reading takes."""
    if most is None:
        return
    from stepnet.layout.files.store import at_most

    context.with_resource(at_most(most))


for command in COMMANDS:
    app.command()(command)
