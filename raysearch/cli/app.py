"""The application that commands register with, and the arguments that several commands share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from raysearch.core.versions import VERSION


def _check_overrides(context: typer.Context, overrides: list[str]) -> list[str]:
    """Refuse ``store=…`` in commands on recorded searches, which have the option ``--store``."""
    for override in overrides:
        if override.startswith("store=") and any(
            parameter.name == "store_path" for parameter in context.command.params
        ):
            store = shlex.quote(override.removeprefix("store="))
            raise typer.BadParameter(f"write --store {store} instead of {override}")
    return overrides


_NONE: Any = {"default_factory": list, "show_default": False}
Overrides = Annotated[
    list[str],
    typer.Argument(metavar="KEY=VALUE", help="Options; their keys are in conf/.", callback=_check_overrides, **_NONE),
]
Tracking = Annotated[
    list[str], typer.Argument(metavar="[TRACKING.KEY=VALUE]", help="Another MLflow server or store.", **_NONE)
]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder of your own YAML files, laid out like conf/.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, everything else on stderr.")]
Also = Annotated[
    list[str],
    typer.Option(metavar="OVERRIDES", help="Another calibration: the keys that differ from the first.", **_NONE),
]
SearchName = Annotated[
    str, typer.Argument(metavar="SEARCH", help="A search id, the start of one, an MLflow run id, or latest.")
]
SearchOrStudyName = Annotated[
    str,
    typer.Argument(
        metavar="SEARCH|STUDY",
        help="The id of a search or a study, the start of one, an MLflow run id, or latest, the last search.",
    ),
]
StorePath = Annotated[
    Path, typer.Option("--store", help="The folder of the ledger (store= of the search), or a ledger's file.")
]
Remove = Annotated[int | None, typer.Option(help="Use the best mask of this many layers instead of the result.")]

app = typer.Typer(
    name="raysearch",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find which Transformer layers of a decoder LLM to remove so that the least quality is lost.\n\n"
    "Start with: raysearch search",
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"raysearch {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version)
    ] = False,
) -> None: ...
