"""Removes layers and recovers the model in turns: ``schedule=[3,3,3] heal=recover``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import PositiveInt

from raysearch.core.options import Options
from raysearch.errors import UserError
from raysearch.evaluation.session import EvaluationSession
from raysearch.ledger.ledger import Ledger
from raysearch.models.spec import ModelInfo
from raysearch.recovery.prompts import check_rows
from raysearch.recovery.spec import RecoverySpec
from raysearch.recovery.stage_record import stage_events
from raysearch.searching.observer import Observer
from raysearch.searching.search_record import SearchRecord
from raysearch.searching.spec import SearchSpec
from raysearch.searching.stages import StagedResult


@dataclass(frozen=True)
class RecoveryHealer(Options):
    """Searches and recovers in turns, with the original model as the teacher of every stage.

    Args:
        schedule: How many layers each stage removes.
        recover_with: The data, the options and the assessment of the recovery.
    """

    section = "heal"

    schedule: tuple[PositiveInt, ...]
    recover_with: RecoverySpec

    @property
    def steps(self) -> int | None:
        """The largest number of steps of each training; None if all rows of the data are used."""
        options = self.recover_with.options
        draw = self.recover_with.data.draw
        n_rows = getattr(draw, "at_most", None) if draw.samples == "all" else draw.samples
        if n_rows is None:
            return options.max_steps
        return options.n_steps(int(n_rows) - options.n_held_out(int(n_rows)))

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the recovered models, besides the search itself, as JSON values."""
        identity = {"schedule": self.schedule, **self.recover_with.identity, "files": self.recover_with.digests}
        return dict(json.loads(json.dumps(identity, default=str)))

    def check(self, info: ModelInfo) -> None:
        """Refuse a model that cannot be trained, missing data, and rows that are longer than the model supports."""
        from raysearch.recovery.adapter import check_trainable  # imports torch

        spec = self.recover_with
        if spec.options.loss == "hidden":
            raise UserError(
                "recovery.loss=hidden learns the states of the model whose layers are removed, and heal=recover has "
                "the original model as the teacher of every stage; use recovery.loss=distill"
            )
        spec.data.check()
        check_rows(spec.data, spec.options, info.max_positions)
        check_trainable(info.model, spec.options)

    def heal(
        self, record: SearchRecord, search: SearchSpec, session: EvaluationSession, observer: Observer
    ) -> StagedResult:
        """Run the stages that the ledger does not contain yet, and write the recovered model of the last one.

        Args:
            record: The record of the search.
            search: The specification of the search.
            session: The session of the search, with its replicas and ledger.
            observer: Receives the progress.

        Returns:
            The stages, with the removed layers and the losses before and after each recovery.
        """
        from raysearch.recovery.staged_search import StagedSearch  # imports torch

        return StagedSearch.of(self.schedule, self.recover_with, record, search, session, observer).run()

    def record(self, record: SearchRecord, ledger: Ledger, observer: Observer) -> None:
        """Pass the recoveries of a search to an observer.

        Args:
            record: The search.
            ledger: The ledger.
            observer: The observer.
        """
        for event in stage_events(ledger, record):
            observer.on_event(event)
