"""The command line, and the composition root: the one place where the parts are put together."""

import typer

app = typer.Typer(no_args_is_help=True)


def main() -> None:
    """Entry point of the `duplex` command."""
    app()
