"""The application that commands register with, and the arguments that several of them take."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from raysearch.core.versions import VERSION


def _words(context: typer.Context, words: list[str]) -> list[str]:
    """Refuse the word that sets a search's store, in commands on what is on record."""
    for word in words:
        if word.startswith("store=") and any(one.name == "store" for one in context.command.params):
            raise typer.BadParameter(f"write --store {shlex.quote(word.removeprefix('store='))} instead of {word}")
    return words


_NONE: Any = {"default_factory": list, "show_default": False}
Overrides = Annotated[
    list[str],
    typer.Argument(metavar="KEY=VALUE", help="Options; their keys are in conf/.", callback=_words, **_NONE),
]
Tracking = Annotated[
    list[str], typer.Argument(metavar="[TRACKING.KEY=VALUE]", help="Another MLflow server or store.", **_NONE)
]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder of your own YAML files, laid out like conf/.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, all else on stderr.")]
Also = Annotated[
    list[str],
    typer.Option(metavar="WORDS", help="Another calibration: the words that differ from the first.", **_NONE),
]
_SEARCH = "A search id, the start of one, an MLflow run id, or latest."
Search = Annotated[str, typer.Argument(metavar="SEARCH", help=_SEARCH)]
SearchOrStudy = Annotated[
    str,
    typer.Argument(
        metavar="SEARCH|STUDY",
        help="The id of a search or a study, the start of one, an MLflow run id, or latest, the last search.",
    ),
]
Store = Annotated[Path, typer.Option(help="The folder of the ledger (store= of the search), or a ledger's file.")]
Remove = Annotated[int | None, typer.Option(help="Take the best mask of this many layers instead of the result.")]

app = typer.Typer(
    name="raysearch",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Find which Transformer layers of a decoder LLM to remove so that the least is lost.\n\n"
    "Start with: raysearch search",
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"raysearch {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_say_version)
    ] = False,
) -> None: ...
