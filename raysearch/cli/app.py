"""The application that commands register with."""

from __future__ import annotations

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
