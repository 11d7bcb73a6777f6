"""`duplex robot`: recorded observations through a server's policy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from duplex.cli.clients import Json, Key, Url
from duplex.cli.errors import fail
from duplex.defaults import DEFAULT_URL


def robot(
    *,
    replay: Annotated[
        Path,
        typer.Option(
            metavar="FILE.npz",
            help="Observations: arrays with a row for each step, and values that stay the same.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where the actions go, as NPZ.", show_default=False)
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    session_id: Annotated[
        str | None, typer.Option(help="Names the policy's state, for policies that have one.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Observations a second.", min=0.001, show_default="as fast as it goes"),
    ] = None,
    json: Json = False,
) -> None:
    """Send recorded observations to a robot policy, and keep its actions.

    The server is this one or any that speaks OpenPI.
    """
    from rich.console import Console
    from rich.progress import Progress

    from clients.errors import ClientError
    from clients.report import robot_table, to_json
    from clients.robot_replay import replay as run

    with Progress(console=Console(stderr=True), transient=True, disable=json) as progress:
        bar = progress.add_task("observations", total=None)

        def show(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        try:
            result = asyncio.run(
                run(
                    replay,
                    out,
                    url=url,
                    api_key=api_key,
                    session_id=session_id,
                    rate_hz=rate,
                    on_progress=show,
                )
            )
        except ClientError as error:
            fail(str(error))
    if json:
        typer.echo(to_json(result))
    else:
        Console(highlight=False).print(robot_table(result))
