"""The command line, and the composition root: the one place where the parts are put together.

Imports of what a command needs stand in the command, so that `duplex --help` answers at once, and
so that the server's own process never loads torch: only the engine's does.
"""

from __future__ import annotations

from typing import Annotated

import typer

from duplex.cli.clients import bench, replay
from duplex.cli.offline import offline
from duplex.cli.robot import robot
from duplex.cli.serve import ServeCommand, serve
from duplex.version import VERSION

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Realtime conversations with models that listen while they speak.",
)
app.command(cls=ServeCommand)(serve)
for command in (replay, bench, offline, robot):
    app.command()(command)


def main() -> None:
    """Entry point of the `duplex` command."""
    app()


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """What stands before any command."""
    if version:
        typer.echo(f"duplex {VERSION}")
        raise typer.Exit
