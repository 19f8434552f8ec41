"""Typed access to recorded configurations: where the records are, and the settings of a search.

A record keeps the whole configuration as plain values. This is the only place that reads single values of it by their
keys. Earlier versions recorded fewer keys; those that some records lack have defaults here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysearch.core.paths import option_for
from raysearch.core.scale import Repair
from raysearch.core.space import LAYERS, SPACES, Space


@dataclass(frozen=True)
class PlaceSettings:
    """Where a search or a study is recorded.

    Args:
        config: Its recorded configuration.
    """

    config: Mapping[str, Any]

    @property
    def store(self) -> Path:
        """The folder of the ledger and of the embedded MLflow store."""
        return Path(self.config.get("store", "mlruns"))

    @property
    def ledger(self) -> Path | None:
        """The ledger's file; None for ``ledger.db`` in the store."""
        ledger = self.config.get("ledger")
        return None if ledger is None else Path(ledger)

    @property
    def tracker(self) -> str:
        """``mlflow``, or ``none`` if only the ledger has the records."""
        tracker: str = self.config["tracking"]["type"]
        return tracker

    @property
    def ledger_option(self) -> str:
        """The option of a later command that names the ledger, see `option_for`."""
        return option_for(self.store, self.ledger)

    @property
    def ui_option(self) -> str | None:
        """The option of ``raysearch ui`` that names the embedded MLflow store; None if the records are elsewhere."""
        is_embedded = self.tracker == "mlflow" and self.config["tracking"]["uri"] is None
        return option_for(self.store) if is_embedded else None


@dataclass(frozen=True)
class SearchSettings:
    """The recorded settings of a search.

    Args:
        config: Its recorded configuration.
    """

    config: Mapping[str, Any]

    @property
    def places(self) -> PlaceSettings:
        """Where it is recorded."""
        return PlaceSettings(self.config)

    @property
    def choices(self) -> Mapping[str, str]:
        """The chosen file of each group, such as ``searcher``, ``objective`` and ``data``."""
        choices: Mapping[str, str] = self.config.get("choices", {})
        return choices

    @property
    def calibration(self) -> str:
        """The chosen objective and data, for people: ``perplexity on sotu``."""
        return f"{self.choices['objective']} on {self.choices['data']}"

    @property
    def model_name(self) -> str:
        """The user's name for the model."""
        name: str = self.config["model"]["name"]
        return name

    @property
    def model_path(self) -> str:
        """The model's path, see `ModelSpec`; empty in a record without it."""
        return str(self.config["model"].get("path", ""))

    @property
    def adapter(self) -> str | None:
        """The folder of the model's adapter; None if it has none."""
        adapter: str | None = self.config["model"].get("adapter")
        return adapter

    @property
    def model_cache(self) -> bool:
        """Whether files of the model are kept in the user's cache."""
        return bool(self.config["model"].get("cache", True))

    @property
    def remove(self) -> int | str:
        """The number of layers to remove, a range such as ``"1..9"``, or ``"auto"``."""
        remove: int | str = self.config["remove"]
        return remove

    @property
    def space(self) -> Space:
        """What could be removed."""
        return SPACES[self.config.get("space", LAYERS.name)]

    @property
    def repair(self) -> Repair:
        """How masks were repaired before they were evaluated."""
        repair: Repair = self.config.get("repair", "none")
        return repair

    @property
    def is_repaired(self) -> bool:
        """Whether masks were repaired before they were evaluated."""
        return self.repair != "none"

    @property
    def protect(self) -> Sequence[int | str]:
        """The layers and halves that are never removed; negative layers count from the end."""
        protect: Sequence[int | str] = self.config["protect"]
        return protect

    @property
    def serve(self) -> str | None:
        """The runtime in which the speeds of a search by budget are measured; None for transformers."""
        serve: str | None = self.config.get("speed", {}).get("serve")
        return serve

    @property
    def seed(self) -> int | None:
        """The seed of the searcher."""
        return self.config.get("seed")

    @property
    def samples(self) -> int | str | None:
        """The number of samples, or ``"all"``; None if it was not recorded."""
        return self._data.get("samples")

    @property
    def data_seed(self) -> int | None:
        """The seed of the samples; None if it was not recorded."""
        return self._data.get("seed")

    @property
    def _data(self) -> Mapping[str, Any]:
        return self.config.get("data") or {}

    @property
    def confidence(self) -> float:
        """The confidence of screening."""
        confidence: float = self.config["screening"]["confidence"]
        return confidence

    @property
    def searcher(self) -> Mapping[str, Any]:
        """The options of the searcher, with its ``type``."""
        searcher: Mapping[str, Any] = self.config["searcher"]
        return searcher
