"""The command line. Heavy imports wait until a command needs them, so that ``--help`` answers at once."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer

from raysearch.errors import EvaluationError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from raysearch.evaluation.runs import RunRecord

_UsageError: Any = typer.BadParameter.__base__  # a mistake in the words themselves; typer has no public name for it

_WIDTH_OF_FILES = 200  # characters; tables that go to a file or a program are not cut to a terminal's 80

_SEARCH_HELP = """Finds which layers of a model to remove, and records the evidence.

\b
raysearch search                                       greedy, 5 layers of SmolLM2-135M, on installed prose
raysearch search searcher=beam searcher.width=3 remove=7 protect=[0,-1]
raysearch search remove=1..9                           the best mask for each number of layers, in one search
raysearch search model=Qwen/Qwen3-0.6B model.dtype=bfloat16 data=file data.path=my.txt
raysearch search data=hub data.name=allenai/c4 data.config=en data.samples=64 data.seq_len=2048
raysearch search cluster.replicas=2 tracking.uri=http://127.0.0.1:5000

The same command again goes on where it was stopped. Groups: model= data= objective= searcher= cluster= tracking=; see
the files under conf/. Layers are 0-based.
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
    with _reporting(as_json) as report:
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
    with _reporting(as_json) as report:
        from raysearch import build, config
        from raysearch.display import SearchDisplay, score_table
        from raysearch.study.score import score_masks

        report.when_stopped = "stopped; the same command again goes on from here"
        spec = build.score_spec(config.compose("score", overrides or [], config_dir))
        with SearchDisplay(report.err) as display:
            scores = score_masks(spec, display.progress)
        report.answer([one.as_json() for one in scores], score_table(scores))


@app.command()
def resume(run: Run, store: Store = Path("mlruns"), ledger: LedgerFile = None, as_json: Json = False) -> None:
    """Takes up a search that was stopped; the ledger answers what it had got done.

    \b
    raysearch resume greedy-m5-3fa2c1d0
    raysearch resume latest
    """
    with _reporting(as_json) as report:
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
    with _reporting(as_json) as report, _open_ledger(store, ledger) as opened:
        from raysearch import display
        from raysearch.evaluation.runs import find_run, list_runs
        from raysearch.study.gap import gaps_of

        if run is None:
            if gap:
                raise UserError("--gap ranks what one search found; name it, as in raysearch show latest --gap")
            runs = list_runs(opened)
            listing = [{"run_id": one.run_id, "state": one.state, "result": _brief(one)} for one in runs]
            report.answer(listing, display.runs_table(runs))
        else:
            record = find_run(opened, run)
            whole = {"run_id": record.run_id, "state": record.state, "config": record.config, "result": record.result}
            gaps = gaps_of(record, opened) if gap else []
            ranks = {"gap": [one.as_json() for one in gaps]} if gap else {}
            report.answer({**whole, **ranks}, *display.run_tables(record, most, gaps))


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
    with _reporting(as_json) as report:
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
    with _reporting(as_json=False):
        from raysearch.tracking.ui import serve_ui

        serve_ui(store, uri, host, port)


def main() -> NoReturn:
    """The console script: 0 done, 1 failed, 2 a mistake of the user's, 130 stopped by the user."""
    _quiet_libraries()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        sys.exit(app(prog_name="raysearch", standalone_mode=False))
    except _UsageError as error:
        if sys.argv[1:]:
            command = error.ctx.command_path if error.ctx else "raysearch"
            _say(_stderr(), "[red]error:[/]", f"{error.format_message().rstrip('.')}; see {command} --help")
        else:
            error.show()  # the help
        sys.exit(2)


class _Report:
    """Where a command's answers go: tables for people, or one JSON value."""

    def __init__(self, as_json: bool, out: Console, err: Console) -> None:
        self.as_json, self.out, self.err = as_json, out, err
        self.when_stopped = "stopped"

    def answer(self, value: Any, *readable: Any) -> None:
        """Prints the one answer of a command."""
        if self.as_json:
            self.out.file.write(json.dumps(value) + "\n")
        else:
            for part in readable:
                self.out.print(part, highlight=False, soft_wrap=isinstance(part, str))

    def search(self, spec: Any, resumes: str | None = None) -> None:
        """Runs a search to its closing table."""
        from raysearch import display
        from raysearch.study.search import run_search

        self.when_stopped = "stopped; the same command again goes on from here"
        store, ledger, embedded = spec.tracking.folder, spec.judge.ledger, spec.tracking.is_embedded
        in_store = "" if store == Path("mlruns") else f" --store {shlex.quote(str(store))}"
        in_ledger = in_store if ledger == store / "ledger.db" else f" --ledger {shlex.quote(str(ledger))}"
        with display.SearchDisplay(self.err) as live:
            try:
                result = run_search(spec, live, resumes)
            except KeyboardInterrupt:
                if live.run_id:
                    self.when_stopped += f", and so does: raysearch resume {live.run_id}{in_ledger}"
                raise
        value = result.as_json()
        tables = [display.result_table(result)]
        if len(value["path"]) > 2 or len(spec.sizes) > 1:
            tables.append(display.path_table(value["path"]))
        self.answer(value, *tables, *display.result_notes(result, in_ledger, in_store if embedded else None))

    def forecast(self, spec: Any) -> None:
        """Says what a search would cost."""
        from raysearch import display
        from raysearch.study.search import forecast_search

        expected = forecast_search(spec)
        totals = None if expected is None else [vars(cost) for cost in expected]
        self.answer({"rounds": totals}, display.forecast_line(expected))


@contextmanager
def _reporting(as_json: bool) -> Iterator[_Report]:
    """Gives a command its outputs, and ends it with one sentence and the right exit code if it fails."""
    from rich.console import Console

    err = _stderr()
    with _clean_stdout() if as_json else nullcontext(sys.stdout) as results:
        width = None if results.isatty() else _WIDTH_OF_FILES
        report = _Report(as_json, Console(file=results, markup=False, emoji=False, width=width), err)
        try:
            yield report
        except UserError as error:
            _say(err, "[red]error:[/]", error)
            raise typer.Exit(2) from error
        except EvaluationError as error:
            _say(err, "[red]failed:[/]", error)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            _say(err, "", report.when_stopped)
            raise typer.Exit(130) from error


@contextmanager
def _clean_stdout() -> Iterator[TextIO]:
    """Standard output for the JSON alone: what a library prints meanwhile goes to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            yield results
        finally:
            sys.stdout.flush()
            os.dup2(results.fileno(), sys.stdout.fileno())


def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, emoji=False)


def _say(err: Console, opening: str, sentence: object) -> None:
    """One line on standard error, whatever a file name in it may hold."""
    from rich.markup import escape

    text = escape(" ".join(str(sentence).splitlines()))
    err.print(f"{opening} {text}".lstrip(), highlight=False, soft_wrap=True)


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
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a searcher's small matrices lose by more, and replicas work
