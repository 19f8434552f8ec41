"""The conformance suite of the objective contract (`raysearch.calibration.objectives.base`).

A new objective needs only one YAML file in ``conf/objective/``: raysearch's tests run this suite for each of these
files. For an objective outside raysearch, subclass the suite in a test file:

    class TestMyObjective(ObjectiveSuite):
        def make_objective(self):
            return MyObjective()
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from raysearch.calibration.batch import Batch, Choices, Form
from raysearch.calibration.objectives.base import ModelObjective, Objective, StateObjective
from raysearch.calibration.packing import pack
from raysearch.core.mask import Mask
from raysearch.generation.answer import Answer
from raysearch.models.stack import LayerStack, predicting

VOCABULARY = 50
_SAMPLES = 5


def tiny_model(n_layers: int = 4) -> LlamaForCausalLM:
    """Return a random model, which is the same for each call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=n_layers,
            num_attention_heads=2,
            initializer_range=0.3,  # so that some tokens are likelier than others
        )
        return LlamaForCausalLM(config).eval()


class _Words:
    """A tokenizer that writes tokens as numbers."""

    eos_token_id = 0

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Return the numbers of the tokens as text.

        Args:
            ids: The tokens.
            skip_special_tokens: Ignored, because there are no special tokens.
        """
        return " ".join(map(str, ids))


class ObjectiveSuite:
    """Tests that every objective must pass, on a tiny random model. Override `make_objective`."""

    def make_objective(self) -> Objective:
        """Return a fresh objective."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """Create a model of two layers."""
        self.stack = LayerStack(tiny_model(n_layers=2))

    def make_batch(self, form: Form) -> Batch:
        """Return five samples of a form, with different lengths and with two to four choices."""
        rng = np.random.default_rng(0)
        if form is Form.CHOICES:
            rows = []
            scored = []
            item = []
            for sample in range(_SAMPLES):
                prompt = rng.integers(VOCABULARY, size=3 + sample).tolist()
                for _ in range(2 + sample % 3):
                    answer = rng.integers(VOCABULARY, size=rng.integers(1, 4)).tolist()
                    rows.append([*prompt, *answer])
                    scored.append([False] * len(prompt) + [True] * len(answer))
                    item.append(sample)
            gold = np.diff(item, prepend=-1) > 0  # the first choice of each item
            return Batch.of(rows, scored, Choices(np.array(item), gold, np.arange(len(rows)) + 1))
        rows = [rng.integers(VOCABULARY, size=size).tolist() for size in (9, 7, 8, 9, 5)]
        if form is Form.PROMPT:
            answers = tuple(Answer(str(number)) for number in range(_SAMPLES))
            return Batch.of(rows, [[False] * len(row) for row in rows], answers=answers)
        return Batch.of(rows, [[False, *(rng.random(len(row) - 2) < 0.6).tolist(), True] for row in rows])

    @torch.inference_mode()
    def losses(self, batch: Batch, mask: Mask = Mask(), packed: bool = False) -> npt.NDArray[np.float64]:  # noqa: B008
        """Return the losses of the model without the mask's layers, float64, [B].

        Args:
            batch: The samples.
            mask: The layers to remove.
            packed: Whether the rows of each sample are packed into one row.

        Returns:
            The losses, on the CPU.
        """
        objective = self.make_objective()
        if isinstance(objective, ModelObjective):
            with self.stack.bypassed(mask) as model:
                return objective.model_losses(model, _Words(), batch).losses.numpy()
        assert isinstance(objective, StateObjective)
        states = self._states(batch, mask, packed)
        dense = self._states(batch, Mask(), packed)
        return objective.losses(states, batch, self.stack, dense if objective.compares else None).cpu().numpy()

    def _states(self, batch: Batch, mask: Mask, packed: bool) -> Any:
        inputs = pack(batch) if packed else batch.inputs
        return predicting(self.stack.walk(self.stack.capture(inputs), mask), inputs)

    @property
    def batch(self) -> Batch:
        """Samples of the objective's form."""
        return self.make_batch(self.make_objective().form)

    def test_its_measure_reads_a_loss(self) -> None:
        """The measure has a unit, and a readout that is a number."""
        measure = self.make_objective().measure
        assert measure.unit
        assert isinstance(measure.read(0.5), float)

    def test_one_finite_number_a_sample(self) -> None:
        """The losses are finite, float64, [B]."""
        losses = self.losses(self.batch, Mask.of(1))
        assert losses.shape == (_SAMPLES,)
        assert losses.dtype == np.float64
        assert np.isfinite(losses).all()

    def test_samples_are_independent(self) -> None:
        """A sample's loss is the same in any order and in any shard."""
        batch = self.batch
        mask = Mask.of(1)
        losses = self.losses(batch, mask)
        shard_losses = [self.losses(batch.samples(start, start + 2), mask) for start in (0, 2, 4)]
        np.testing.assert_allclose(np.concatenate(shard_losses), losses, rtol=1e-5, atol=1e-7)
        reverse_order = reversed(range(_SAMPLES))
        reversed_losses = [self.losses(batch.samples(sample, sample + 1), mask) for sample in reverse_order]
        np.testing.assert_allclose(np.concatenate(reversed_losses)[::-1], losses, rtol=1e-5, atol=1e-7)

    def test_packed_choices_have_the_losses_of_plain_rows(self) -> None:
        """If there are no choices, a packed sample is its row."""
        if isinstance(self.make_objective(), StateObjective):
            batch = self.batch
            mask = Mask.of(0)
            np.testing.assert_allclose(
                self.losses(batch, mask, packed=True), self.losses(batch, mask), rtol=1e-5, atol=1e-7
            )

    def test_tokens_after_the_last_scored_one_change_nothing(self) -> None:
        """A loss depends on earlier tokens only."""
        batch = self.batch
        if not isinstance(self.make_objective(), StateObjective) or batch.choices is not None:
            return
        before = self.losses(batch, Mask.of(1))
        rows = [row[: int(length)].tolist() for row, length in zip(batch.input_ids, batch.lengths, strict=True)]
        marks = [row[: int(length)].tolist() for row, length in zip(batch.scored, batch.lengths, strict=True)]
        longer = Batch.of([[*row, 7] for row in rows], [[*row, False] for row in marks])
        np.testing.assert_allclose(self.losses(longer, Mask.of(1)), before, rtol=1e-5, atol=1e-7)

    def test_the_dense_model_compared_with_itself_has_no_loss(self) -> None:
        """The loss of an objective that compares is least at the dense model, so its gradient is zero."""
        objective = self.make_objective()
        if isinstance(objective, StateObjective) and objective.compares:
            np.testing.assert_allclose(self.losses(self.batch), 0, atol=1e-5)
            assert not objective.differentiable

    def test_gradients_are_those_of_finite_differences(self) -> None:
        """This holds for objectives that declare that they are differentiable."""
        objective = self.make_objective()
        batch = self.batch
        if not isinstance(objective, StateObjective) or not objective.differentiable:
            return
        states = self._states(batch, Mask(), packed=False).detach()
        direction = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
        variable = states.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(objective.losses(variable, batch, self.stack, None).sum(), variable)
        step = 0.01 * float(states.std())
        with torch.no_grad():
            loss_after = float(objective.losses(states + step * direction, batch, self.stack, None).sum())
            loss_before = float(objective.losses(states - step * direction, batch, self.stack, None).sum())
        slope = (loss_after - loss_before) / (2 * step)
        np.testing.assert_allclose(float((gradient * direction).sum()), slope, rtol=2e-2)
