"""The command line. Heavy imports wait until a command needs them, so that ``--help`` answers at once."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from raysearch.errors import UserError
from raysearch.terminal import reporting, say, stderr

if TYPE_CHECKING:
    from raysearch.evaluation.runs import RunRecord

_UsageError: Any = typer.BadParameter.__base__  # a mistake in the words themselves; typer has no public name for it

_SEARCH_HELP = """Finds which layers of a model to remove, and records the evidence.

\b
raysearch search                                       greedy, 5 layers of SmolLM2-135M, on installed prose
raysearch search searcher=beam searcher.width=3 remove=7 protect=[0,-1]
raysearch search remove=1..9                           the best mask for each number of layers, in one search
raysearch search model=Qwen/Qwen3-0.6B model.dtype=bfloat16 data=file data.path=my.txt
raysearch search calibration=paper_perplexity          perplexity on C4, as in the paper
raysearch search objective=task_margin data=multiple_choice data.path=my-questions.jsonl
raysearch search cluster.replicas=2 tracking.uri=http://127.0.0.1:5000

The same command again goes on where it was stopped. Groups: model= data= objective= calibration= searcher= cluster=
tracking=; see the files under conf/. Layers are 0-based.
"""

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

Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options, as in conf/.")]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder of your own YAML files, laid out like conf/.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value on stdout, all else on stderr.")]
Also = Annotated[
    list[str] | None, typer.Option(metavar="WORDS", help="Another calibration: the words that are different.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run id, the start of one, an MLflow run id, or latest.")]
Store = Annotated[Path, typer.Option(help="The folder that searches wrote to (their store=).")]
LedgerFile = Annotated[Path | None, typer.Option("--ledger", help="The ledger, if it is not in the store.")]


@app.command(help=_SEARCH_HELP)
def search(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[bool, typer.Option(help="Say what it would cost, and stop.")] = False,
    as_json: Json = False,
) -> None:
    with reporting(as_json) as report:
        from raysearch import build, config

        spec = build.search_spec(config.compose("search", overrides or [], config_dir))
        if dry_run:
            report.forecast(spec)
        else:
            report.search(spec)


@app.command()
def score(overrides: Overrides = None, config_dir: ConfigDir = None, as_json: Json = False) -> None:
    """Gives the exact loss of masks that you already have.

    \b
    raysearch score masks=[[3],[3,5],[]]
    raysearch score masks=[[21,22,25]] data=file data.path=my.txt --json
    """
    with reporting(as_json) as report:
        from raysearch import build, config
        from raysearch.display import SearchDisplay
        from raysearch.study.score import score_masks
        from raysearch.tables import score_table

        report.when_stopped = "stopped; the same command again goes on from here"
        spec = build.score_spec(config.compose("score", overrides or [], config_dir))
        with SearchDisplay(report.err) as display:
            scores = score_masks(spec, display.progress)
        report.answer([one.as_json() for one in scores], score_table(scores))


@app.command()
def data(
    overrides: Overrides = None,
    also: Also = None,
    config_dir: ConfigDir = None,
    samples: Annotated[int, typer.Option(min=0, help="How many samples to show.")] = 2,
    loss: Annotated[bool, typer.Option("--loss/--no-loss", help="Run the dense model on them.")] = True,
    as_json: Json = False,
) -> None:
    """Shows a calibration as the model will see it: samples, what is scored of them, counts, the dense loss.

    \b
    raysearch data data=sotu --samples 1
    raysearch data data=commonsense170k data.path=commonsense_170k.json objective=task_margin
    raysearch data data=c4 --also "data=commonsense170k objective=task_margin" --no-loss
    """
    with reporting(as_json) as report:
        from raysearch import api, tables
        from raysearch.display import SearchDisplay

        with SearchDisplay(report.err) as display:
            found = api.inspect(
                *overrides or [],
                also=also or [],
                config_dir=config_dir,
                samples=samples,
                loss=loss,
                on_progress=display.progress,
            )
        report.answer([dataclasses.asdict(one) for one in found], *tables.inspections(found))


@app.command()
def sweep(
    overrides: Overrides = None,
    also: Also = None,
    config_dir: ConfigDir = None,
    remove: Annotated[int, typer.Option(min=1, help="Compare the layers that would go first, so many of them.")] = 5,
    out: Annotated[Path, typer.Option(help="The folder for the figure and the table.")] = Path("sweep"),
    as_json: Json = False,
) -> None:
    """Removes each layer by itself, and lays side by side what several calibrations make of it.

    \b
    raysearch sweep --also objective=kl --also objective=hidden_cosine
    raysearch sweep data=c4 --also "objective=task_margin data=commonsense170k data.samples=64"
    raysearch sweep objective=generation_accuracy data=gsm8k data.samples=20 objective.max_new_tokens=64
    """
    with reporting(as_json) as report:
        from raysearch import api, tables
        from raysearch.display import SearchDisplay
        from raysearch.study.sweep_files import write_sweep

        report.when_stopped = "stopped; the same command again goes on from here"
        with SearchDisplay(report.err) as display:
            found = api.sweep(*overrides or [], also=also or [], config_dir=config_dir, on_progress=display.progress)
        written = write_sweep(found, remove, out)
        agreements = found.agreements(remove)
        value = {
            "model": found.model,
            "calibrations": [one.as_json() for one in found.profiles],
            "agreements": [vars(one) for one in agreements],
            "files": [str(path) for path in written],
        }
        report.answer(value, *tables.sweep_tables(found, agreements), f"Wrote {', '.join(map(str, written))}")


@app.command()
def resume(run: Run, store: Store = Path("mlruns"), ledger: LedgerFile = None, as_json: Json = False) -> None:
    """Takes up a search that was stopped; the ledger answers what it had got done.

    \b
    raysearch resume greedy-m5-3fa2c1d0
    raysearch resume latest
    """
    with reporting(as_json) as report:
        from raysearch import build

        record = _find_run(run, store, ledger)
        # The same ledger and store, from whatever folder this is typed in.
        here = {"ledger": str(ledger)} if ledger else {"ledger": None, "store": str(store)}
        report.search(build.search_spec({**record.config, **here}), resumes=record.run_id)


@app.command()
def show(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run; all of them if left out.")] = None,
    most: Annotated[int, typer.Option(min=1, help="How many masks to list.")] = 20,
    gap: Annotated[bool, typer.Option("--gap", help="Rank what was found among all masks there are.")] = False,
    store: Store = Path("mlruns"),
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Lists the searches of a ledger, or what one of them found and saw.

    \b
    raysearch show
    raysearch show greedy-m5-3fa2c1d0 --most 50
    raysearch show latest --gap
    """
    with reporting(as_json) as report, _open_ledger(store, ledger) as opened:
        from raysearch import tables
        from raysearch.evaluation.runs import find_run, list_runs
        from raysearch.study.gap import gaps_of

        if run is None:
            if gap:
                raise UserError("--gap ranks what one search found; name it, as in raysearch show latest --gap")
            runs = list_runs(opened)
            listing = [{"run_id": one.run_id, "state": one.state, "result": _brief(one)} for one in runs]
            report.answer(listing, tables.runs_table(runs))
        else:
            record = find_run(opened, run)
            whole = {"run_id": record.run_id, "state": record.state, "config": record.config, "result": record.result}
            gaps = gaps_of(record, opened) if gap else []
            ranks = {"gap": [one.as_json() for one in gaps]} if gap else {}
            report.answer({**whole, **ranks}, *tables.run_tables(record, most, gaps))


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    remove: Annotated[int | None, typer.Option(help="Its best mask of so many layers, not the one it found.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it is not empty.")] = False,
    prompt: Annotated[str | None, typer.Option(help="Continue this text with the model before and after.")] = None,
    store: Store = Path("mlruns"),
    ledger: LedgerFile = None,
    as_json: Json = False,
) -> None:
    """Writes what a search found as a checkpoint that plain transformers, vLLM and llama.cpp load.

    \b
    raysearch export latest --out pruned-model
    raysearch export latest --out pruned-by-3 --remove 3
    raysearch export greedy-m5-3fa2c1d0 --out pruned-model --overwrite --prompt "The state of the Union is"
    """
    with reporting(as_json) as report:
        from raysearch import build
        from raysearch.study.exporting import export_run

        record = _find_run(run, store, ledger)
        spec = build.search_spec(record.config)
        done = export_run(record, spec, out, remove=remove, overwrite=overwrite, prompt=prompt)
        lines = [f"Wrote {done.out}: {done.n_layers} layers, {done.parameters / 1e6:,.1f} M parameters."]
        lines.append(f"Reloaded with plain transformers; largest logit difference {done.max_logit_difference:.2g}.")
        if prompt is not None:
            lines += [f"Before: {prompt}{done.before}", f"After:  {prompt}{done.after}"]
        report.answer({**vars(done), "out": str(done.out), "run_id": record.run_id}, *lines)


@app.command()
def ui(
    store: Store = Path("mlruns"),
    uri: Annotated[str | None, typer.Option(help="A tracking URI other than the store's own.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 5000,
) -> None:
    """Opens MLflow's own UI on the recorded searches, until Ctrl-C.

    \b
    raysearch ui
    raysearch ui --port 5001
    """
    with reporting(as_json=False):
        from raysearch.tracking.ui import serve_ui

        serve_ui(store, uri, host, port)


def main() -> NoReturn:
    """The console script: 0 done, 1 failed, 2 a mistake of the user's, 130 stopped by the user."""
    _quiet_libraries()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also where SIGINT itself is ignored, as under nohup
    try:
        sys.exit(app(prog_name="raysearch", standalone_mode=False))
    except _UsageError as error:
        if sys.argv[1:]:
            command = error.ctx.command_path if error.ctx else "raysearch"
            say(stderr(), "[red]error:[/]", f"{error.format_message().rstrip('.')}; see {command} --help")
        else:
            error.show()  # the help
        sys.exit(2)


@contextmanager
def _open_ledger(store: Path, ledger: Path | None) -> Iterator[Any]:
    from raysearch.evaluation.ledger import Ledger

    path = ledger or store / "ledger.db"
    if not path.is_file():
        raise UserError(f"there is no ledger at {path}; start a search with raysearch search, or name it with --store")
    opened = Ledger(path)
    try:
        yield opened
    finally:
        opened.close()


def _find_run(name: str, store: Path, ledger: Path | None) -> RunRecord:
    from raysearch.evaluation.runs import find_run

    with _open_ledger(store, ledger) as opened:
        return find_run(opened, name)


def _brief(run: RunRecord) -> dict[str, Any] | None:
    """A run's result without its trials."""
    return None if run.result is None else {key: value for key, value in run.result.items() if key != "trials"}


def _quiet_libraries() -> None:
    """Keeps the chatter of libraries off the user's terminal, unless the user asked for it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it tells of every retry
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a searcher's small matrices lose by more, and replicas work
