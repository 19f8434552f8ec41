"""From a `JudgeSpec` to something that can be asked: the model's facts, its calibration, and an evaluator.

Everything that can be wrong is found here before any weights are loaded: the text, the tokenizer, the model's shape.
The replicas themselves start when the ledger cannot answer for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raysearch.calibration.calibration import Calibration, build_text_calibration
from raysearch.errors import UserError
from raysearch.evaluation.cluster import open_pool
from raysearch.evaluation.evaluator import Evaluator, Progress
from raysearch.evaluation.ledger import Ledger
from raysearch.models.loading import (
    ModelInfo,
    fingerprint,
    load_tokenizer,
    resolve_device,
    tokenizer_fingerprint,
)
from raysearch.study.spec import JudgeSpec, identity_of


@dataclass(frozen=True)
class Judge:
    """A model and a calibration, ready to be asked.

    Args:
        info: The model's shape.
        calibration: What masks are judged on.
        fingerprints: By subject: ``calibration``, ``model``, ``text``.
        ledger: What is known.
        evaluator: Answers.
    """

    info: ModelInfo
    calibration: Calibration
    fingerprints: dict[str, str]
    ledger: Ledger
    evaluator: Evaluator

    def close(self) -> None:
        """Frees the replicas and the ledger. Closing twice is harmless."""
        self.evaluator.close()
        self.ledger.close()


def open_judge(spec: JudgeSpec, info: ModelInfo, on_progress: Callable[[Progress], None]) -> Judge:
    """Reads the text, then opens the ledger; loads no weights, and leaves nothing behind if something is wrong.

    Args:
        spec: What to open.
        info: The model's shape, by `describe`.
        on_progress: Told how far a round is.

    Raises:
        UserError: Something the user named is not there, too small, or does not fit together.
    """
    spec.source.check()
    spec.cluster.check(resolve_device(spec.model) != "cpu")
    tokenizer = load_tokenizer(spec.model)
    model_fingerprint = fingerprint(spec.model)
    identity = {
        "model": model_fingerprint,
        "tokenizer": tokenizer_fingerprint(tokenizer),
        "objective": identity_of(spec.objective),
        "dtype": info.dtype,
        "attention": spec.model.attention,
        "device": resolve_device(spec.model).partition(":")[0],
        "threads": spec.cluster.cpus_per_replica,
    }
    calibration = build_text_calibration(
        spec.source, spec.windows, tokenizer, spec.data_seed, identity, info.max_positions
    )
    highest = max(int(shard.input_ids.max()) for shard in calibration.shards)
    if highest >= info.vocab_size:
        raise UserError(
            f"the tokenizer of model={spec.model.name} gives token {highest}, but the model has {info.vocab_size} in "
            "its vocabulary; use the tokenizer that the model was made with"
        )
    ledger = Ledger(spec.ledger)
    evaluator = Evaluator(
        calibration=calibration,
        n_layers=info.n_layers,
        ledger=ledger,
        make_pool=lambda: open_pool(spec.cluster, spec.model, calibration, spec.objective),
        on_progress=on_progress,
    )
    fingerprints = {
        "calibration": calibration.fingerprint,
        "model": model_fingerprint,
        "text": calibration.text_fingerprint,
    }
    return Judge(info, calibration, fingerprints, ledger, evaluator)
