"""How a command ends in an error."""

from __future__ import annotations

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Ends the command with an error for its user, on standard error."""
    typer.secho(message, err=True, fg=typer.colors.RED)
    raise typer.Exit(1)
