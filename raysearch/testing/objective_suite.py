"""The conformance suite of the objective contract (`raysearch.calibration.objectives.base`).

A new objective is tested by one YAML file in ``conf/objective/``: raysearch's own tests run this suite over all of
them. For an objective kept elsewhere, subclass the suite in a test file:

    class TestMyObjective(ObjectiveSuite):
        def make_objective(self):
            return MyObjective()
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from raysearch.calibration.batch import Batch
from raysearch.calibration.objectives.base import Objective
from raysearch.models.stack import LayerStack


class ObjectiveSuite:
    """What every objective must do, on a tiny random model. Override `make_objective`."""

    def make_objective(self) -> Objective:
        """A fresh objective."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """A model, and five samples of nine tokens of which an arbitrary part is scored."""
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2
        )
        self.stack = LayerStack(LlamaForCausalLM(config).eval())
        rng = np.random.default_rng(0)
        scored = rng.random((5, 9)) < 0.6
        scored[:, 0], scored[:, -1] = False, True
        self.batch = Batch(rng.integers(0, 50, scored.shape), scored)

    @torch.inference_mode()
    def losses(self, batch: Batch) -> npt.NDArray[np.float64]:
        """The objective's losses of the dense model."""
        captured = self.stack.capture(batch)
        hidden = captured.embedded
        for layer in range(self.stack.n_layers):
            hidden = self.stack.run_layer(layer, hidden, captured)
        return self.make_objective().losses(hidden, batch, self.stack).numpy()

    def test_one_finite_number_a_sample(self) -> None:
        """Summed nats, float64, [B]."""
        losses = self.losses(self.batch)
        assert losses.shape == (self.batch.n_samples,)
        assert losses.dtype == np.float64
        assert np.isfinite(losses).all()

    def test_samples_do_not_know_of_each_other(self) -> None:
        """A sample's loss is the same in any order and in any shard."""
        whole = self.losses(self.batch)
        shards = [self.losses(self.batch.rows(start, start + 2)) for start in (0, 2, 4)]
        np.testing.assert_allclose(np.concatenate(shards), whole, rtol=1e-5)
        turned = Batch(self.batch.input_ids[::-1].copy(), self.batch.scored[::-1].copy())
        np.testing.assert_allclose(self.losses(turned)[::-1], whole, rtol=1e-5)

    def test_only_scored_tokens_count(self) -> None:
        """With nothing scored there is no loss, and what follows the last scored token changes none."""
        nothing = Batch(self.batch.input_ids, np.zeros_like(self.batch.scored))
        assert (self.losses(nothing) == 0).all()
        ids, scored = self.batch.input_ids.copy(), self.batch.scored.copy()
        scored[:, -1] = False
        before = self.losses(Batch(ids, scored))
        ids[:, -1] = (ids[:, -1] + 1) % 50
        np.testing.assert_allclose(self.losses(Batch(ids, scored)), before, rtol=1e-6)
