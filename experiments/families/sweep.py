"""Checks raysearch on every family of decoders that transformers has, each in a process of its own.

    python experiments/families/sweep.py                          all families that this code has not been checked on
    python experiments/families/sweep.py --only llama mistral3    these, again

A process is a fork of a server that has imported the libraries, so a family takes seconds. What was seen is appended to
`results.jsonl`; the same command goes on where it was stopped. `page.py` makes the page of the documents.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from experiments.families.results import FamilyResult, read_results, record, source_digest, tidy, transformers_version

_PRELOADED = ["experiments.families.check", "raysearch.evaluation.replica", "raysearch.models.export"]


def main() -> None:
    options = _parser().parse_args()
    release, source = transformers_version(), source_digest()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, "raysearch.models.running_proof"])
    present = {result.family for result in read_results() if (result.transformers, result.source) == (release, source)}
    with context.Pool(1) as pool:
        families = options.only or [family for family in pool.apply(_all_families) if family not in present]
    print(f"transformers {release}, raysearch {source}: {len(families)} families", flush=True)
    today = datetime.date.today().isoformat()
    for place, (family, outcome) in enumerate(checked(context, families, options.workers, options.limit_s), 1):
        result = FamilyResult(family=family, transformers=release, source=source, date=today, **outcome)
        record(result)
        print(f"{place}/{len(families)}  {family}  {_summary(result)}", flush=True)
    tidy()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="FAMILY", help="check these, also if they have been checked")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--limit-s", type=float, default=180, help="the most seconds for a family")
    return parser


def checked(
    context: Any, families: Sequence[str], workers: int, limit_s: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each family and what was seen of it, as processes end; those that take too long are killed.

    Args:
        context: The context of multiprocessing.
        families: The model types.
        workers: The number of processes at a time.
        limit_s: The most seconds for a family.
    """
    waiting = list(families)
    running: dict[Connection, tuple[str, BaseProcess, float]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            family = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send_checked, args=(family, sender))
            process.start()
            sender.close()
            running[receiver] = (family, process, time.monotonic() + limit_s)
        next_end_s = min(end_s for _, _, end_s in running.values())
        ready = wait([*running], timeout=max(0.0, next_end_s - time.monotonic()))
        now_s = time.monotonic()
        ended = [receiver for receiver, (_, _, end_s) in running.items() if receiver in ready or end_s <= now_s]
        for receiver in ended:
            family, process, _ = running.pop(receiver)
            try:
                outcome = receiver.recv() if receiver in ready else {"failed": f"it took more than {limit_s:g} s"}
            except EOFError:
                process.join()
                outcome = {"failed": f"its process ended with code {process.exitcode}"}
            process.kill()
            process.join()
            yield family, outcome


def _send_checked(family: str, sender: Connection) -> None:
    from experiments.families.check import check_family

    try:
        sender.send(check_family(family))
    except Exception as error:
        sender.send({"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]})


def _all_families() -> list[str]:
    """Return all model types; call this in another process, since transformers is imported."""
    from experiments.families.checkpoints import families

    return families()


def _summary(result: FamilyResult) -> str:
    if problem := result.failed or result.unbuilt or result.refused:
        return problem
    exported = sum(mask.is_exported for mask in result.masks)
    wrong = "; ".join(result.wrong)
    return f"{exported} of {len(result.masks) - 1} masks exported{', WRONG: ' if wrong else ''}{wrong}"


if __name__ == "__main__":
    main()
