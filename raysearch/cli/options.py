"""The options and arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysearch.core.paths import ledger_path

if TYPE_CHECKING:
    from raysearch.ledger.searches import SearchRecord

Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options, as in conf/.")]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder of your own YAML files, laid out like conf/.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, all else on stderr.")]
Also = Annotated[
    list[str] | None, typer.Option(metavar="WORDS", help="Another calibration: the words that are different.")
]
Tracking = Annotated[
    list[str] | None, typer.Argument(metavar="[TRACKING.KEY=VALUE]", help="Another place to record it in.")
]
Run = Annotated[str, typer.Argument(metavar="SEARCH", help="A run id, the start of one, an MLflow run id, or latest.")]
_STORE = "The folder that searches wrote to (their store=)."
Store = Annotated[Path, typer.Option(help=_STORE)]
StoreIfNamed = Annotated[Path | None, typer.Option("--store", help=_STORE, show_default="mlruns")]
LedgerFile = Annotated[Path | None, typer.Option("--ledger", help="The ledger, if it is not in the store.")]


def recorded_run(name: str, store: Path, ledger: Path | None) -> SearchRecord:
    """The search that a command names."""
    from raysearch.ledger.ledger import opened
    from raysearch.ledger.searches import find_search

    with opened(ledger_path(store, ledger)) as found:
        return find_search(found, name)
