"""The commands on recorded searches: show, export, sync, ui."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from raysearch.api.store import Store, open_store
from raysearch.cli.app import Json, Remove, SearchName, SearchOrStudyName, StorePath, Tracking, app
from raysearch.cli.output import Output, output
from raysearch.core.json import plain
from raysearch.errors import UserError
from raysearch.searching.result import in_brief
from raysearch.text.numbers import count


@app.command(short_help="List the searches, or show the result of one.")
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[SEARCH]", help="A search, as for resume; default: all of them.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Maximum number of masks to list.")] = 20,
    gap: Annotated[bool, typer.Option("--gap", help="Rank the result among all masks of its size.")] = False,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """List the searches of a ledger, or show the result and the masks of one.

    \b
    raysearch show
    raysearch show greedy-m5-3fa2c1d0 --most 50
    raysearch show latest --gap
    """
    with output(as_json) as out:
        store = open_store(store_path)
        if name is not None:
            _show_search(out, store, name, most, gap)
        elif gap:
            raise UserError("--gap ranks what one search found; name it, as in raysearch show latest --gap")
        else:
            _list_searches(out, store)


def _list_searches(out: Output, store: Store) -> None:
    """Print all searches of a store."""
    from raysearch.cli import recorded_tables

    records = store.records()
    cells = store.cells_by_search()
    listing = [
        {
            "search_id": record.search_id,
            "state": record.state,
            "study": recorded_tables.place_in_study(cells.get(record.search_id)),
            "result": record.result and in_brief(record.result),
        }
        for record in records
    ]
    out.answer(listing, recorded_tables.searches_table(records, cells))


def _show_search(out: Output, store: Store, name: str, most: int, ranked: bool) -> None:
    """Print all that is recorded of a search.

    Args:
        out: The output of the command.
        store: The store that contains it.
        name: Its name.
        most: The maximum number of masks to list.
        ranked: Whether to rank the result among all masks of its size.
    """
    from raysearch.cli import recorded_tables
    from raysearch.cli.recovery_tables import recovery_parts

    search = store.search(name)
    record = search.record
    cell = store.cells_by_search().get(record.search_id)
    gap = search.gap() if ranked else None
    command = search.command()
    value = {**plain(record), "study": recorded_tables.place_in_study(cell), "command": command}
    parts = recorded_tables.search_record_tables(record, most, gap, cell)
    if record.result is None:
        value["evaluated"] = search.evaluated()
        parts.append(f"Evaluated so far: {count(value['evaluated'], 'mask')}")
    if gap is not None:
        value["gap"] = plain(gap)
    if assessed := search.assessed():
        value["assessed"] = assessed
        parts.append(recorded_tables.assessed_numbers(assessed))
    if record.result is not None and (recoveries := search.recoveries()):
        value["recoveries"] = [plain(recovery) for recovery in recoveries]
        for recovery in recoveries:
            parts += recovery_parts(recovery, record.search_id)
    out.answer(value, *parts, f"Repeat: {command}")


@app.command(short_help="Recommend how many layers to remove within a budget.")
def recommend(
    name: SearchName,
    budget: Annotated[
        list[str] | None,
        typer.Argument(metavar="BUDGET.KEY=VALUE", help="loss, readout, speedup, memory, kv_memory or latency_ms."),
    ] = None,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Recommend how many layers to remove within a budget, from the results of a search and its assessments.

    \b
    raysearch search remove=1..9                         first, find the best mask of each size; or remove=auto
    raysearch recommend latest budget.loss=0.1           at most 0.1 nats over the dense model
    raysearch recommend latest budget.readout=10%        at most 10 % more perplexity, or less accuracy
    raysearch recommend latest budget.speedup=1.2        20 % faster decoding, if raysearch assess measured it
    raysearch recommend latest budget.memory=-15%        15 % less memory; or at most 6 GB, budget.memory=6GB
    raysearch recommend latest budget.kv_memory=-15%     15 % smaller KV cache, which is counted, not measured

    The largest number of layers within the loss is recommended; without a limit of loss, the smallest with enough gain.
    """
    with output(as_json) as out:
        from raysearch.cli.cells import refusal_notes
        from raysearch.cli.search_tables import budget_table, sentence
        from raysearch.searching.gguf_masks import refused_masks_of_record

        search = open_store(store_path).search(name)
        recommendation = search.recommend(*budget or [])
        masks = [size.mask for size in recommendation.sizes]
        refused = refused_masks_of_record(search.record.settings, masks)
        parts = budget_table(recommendation, refused), sentence(recommendation.reason)
        out.answer(recommendation, *parts, *refusal_notes(refused, recommendation.removed))


@app.command(short_help="Write the pruned model as a checkpoint or a GGUF file.")
def export(
    name: SearchName,
    out: Annotated[Path | None, typer.Option(help="The folder to write a checkpoint to.")] = None,
    gguf: Annotated[Path | None, typer.Option(help="The GGUF file to write; no layer is quantised again.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="The GGUF file to prune; default: the searched one.")
    ] = None,
    remove: Remove = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
    recovered: Annotated[bool, typer.Option("--recovered", help="Export the model that recover wrote last.")] = False,
    without_adapter: Annotated[
        bool, typer.Option("--without-adapter", help="Leave out the adapter that was merged (model.adapter).")
    ] = False,
    prompt: Annotated[str | None, typer.Option(help="Continue this text with the dense and the pruned model.")] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Also upload it to this repository on the Hugging Face Hub."),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: make the repository public.")] = False,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Write the pruned model as a checkpoint that plain transformers, vLLM and llama.cpp load.

    \b
    raysearch export latest --out pruned-model
    raysearch export latest --out pruned-by-3 --remove 3
    raysearch export greedy-m5-3fa2c1d0 --out pruned-model --overwrite --prompt "The state of the Union is"
    raysearch export latest --gguf pruned.gguf --from model-Q4_K_M.gguf
    raysearch export latest --recovered --gguf healed.gguf                      after raysearch recover
    raysearch export latest --out healed                                        after raysearch search heal=recover
    raysearch export latest --out pruned-model --push me/smollm2-shallower      private, unless --public
    """
    with output(as_json) as answers:
        from raysearch.cli import export_lines

        if (out is None) == (gguf is None):
            options = "--out and --gguf" if out is not None else "neither --out nor --gguf"
            raise UserError(f"export was given {options}; name one: a folder with --out, or a file with --gguf")
        if prompt is not None and gguf is not None:
            raise UserError("--prompt is for a checkpoint; leave it out with --gguf")
        if source is not None and gguf is None:
            raise UserError(f"--from={source} is for a GGUF export; name the file to write with --gguf")
        refused = {"--prompt": prompt is not None, "--push": push is not None and gguf is not None}
        refused["--without-adapter"] = without_adapter
        if recovered:
            _refuse_options(refused, "--recovered")
        search = open_store(store_path).search(name)
        if not recovered and search.is_staged:
            recovered = True
            _refuse_options(refused, f"{search.search_id}, whose model was recovered")
        if recovered and gguf is not None:
            healed = search.export_recovered_gguf(gguf, source=source, remove=remove, overwrite=overwrite)
            answers.answer(healed, *export_lines.healed_lines(healed, gguf))
        elif recovered and out is not None:
            copied = search.export_recovered(out, remove=remove, overwrite=overwrite, push=push, public=public)
            answers.answer(copied, *export_lines.recovered_lines(copied, out, public))
        elif gguf is not None:
            file = search.export_gguf(
                gguf,
                source=source,
                remove=remove,
                overwrite=overwrite,
                without_adapter=without_adapter,
                push=push,
                public=public,
            )
            answers.answer(file, *export_lines.gguf_lines(file, gguf, public))
        elif out is not None:
            checkpoint = search.export(
                out,
                remove=remove,
                overwrite=overwrite,
                prompt=prompt,
                without_adapter=without_adapter,
                push=push,
                public=public,
            )
            answers.answer(checkpoint, *export_lines.checkpoint_lines(checkpoint, out, prompt, public))


def _refuse_options(refused: Mapping[str, bool], reason: str) -> None:
    """Refuse options that were given, but are not offered in this case.

    Args:
        refused: Whether each option that is not offered was given.
        reason: The case.
    """
    for option, is_given in refused.items():
        if is_given:
            raise UserError(f"{option} is not offered with {reason}; leave it out")


@app.command(short_help="Upload the missing runs and metrics of a search or a study to MLflow.")
def sync(
    name: SearchOrStudyName,
    overrides: Tracking,
    store_path: StorePath = Path("mlruns"),
    as_json: Json = False,
) -> None:
    """Upload the missing runs and metrics of a search or a study to MLflow, from the ledger, without model or data.

    \b
    raysearch sync latest
    raysearch sync greedy-m5-3fa2c1d0 tracking.uri=http://127.0.0.1:5000
    raysearch sync two-calibrations                     its searches as nested runs, and its report

    Nothing is written twice. The record keeps a new tracking.uri.
    """
    with output(as_json) as out:
        from raysearch.cli.recorded_tables import synced_lines

        synced = open_store(store_path).search_or_study(name).sync(*overrides)
        out.answer(synced, *synced_lines(synced))


@app.command()
def ui(
    store_path: StorePath = Path("mlruns"),
    uri: Annotated[str | None, typer.Option(help="A tracking URI; default: that of the store.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 5000,
) -> None:
    """Serve MLflow's UI with the recorded searches, until Ctrl-C.

    \b
    raysearch ui
    raysearch ui --port 5001
    """
    with output(as_json=False):
        open_store(store_path).ui(uri, host=host, port=port)
