"""The application that commands register with."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

app = typer.Typer(
    name="raysearch",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Finds which Transformer layers of a decoder LLM to remove so that the least is lost.\n\n"
    "Start with: raysearch search",
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"raysearch {version('raysearch')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_say_version)
    ] = False,
) -> None: ...
