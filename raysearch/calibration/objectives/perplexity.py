"""Language-modelling loss: the negative log-likelihood of the scored tokens, reported as perplexity too.

Source: equation 1 of Kim et al. 2026 (arXiv 2604.24938) with L the token-mean NLL; perplexity = exp(L).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.base import Head

#: Logits that stand in memory at once. A CPU likes them near its caches, a GPU wants large matrix products.
_LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**27}


@dataclass(frozen=True)
class PerplexityObjective:
    """-log p(token | tokens before it), summed over the scored tokens of each sample."""

    def losses(self, hidden: torch.Tensor, batch: Batch, head: Head) -> torch.Tensor:
        """See `Objective.losses`."""
        scored = torch.from_numpy(batch.scored[:, 1:]).to(hidden.device)
        targets = torch.from_numpy(batch.input_ids[:, 1:]).to(hidden.device)[scored]
        predictors = hidden[:, :-1][scored]  # [n, d]: the state before each scored token
        rows = max(1, _LOGITS_AT_ONCE.get(hidden.device.type, 2**22) // head.vocab_size)
        nll = [
            functional.cross_entropy(head.logits(states).float(), wanted, reduction="none")
            for states, wanted in zip(predictors.split(rows), targets.split(rows), strict=True)
        ]
        # On the CPU, index_add adds one by one in token order: the sum depends on neither the device nor the chunks.
        sample_of_token = torch.arange(batch.n_samples).repeat_interleave(torch.from_numpy(batch.scored_per_sample))
        zeros = torch.zeros(batch.n_samples, dtype=torch.float64)
        return zeros.index_add(0, sample_of_token, torch.cat(nll).double().cpu()) if nll else zeros
