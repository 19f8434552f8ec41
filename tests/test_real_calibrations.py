"""Every objective on real items, against plain Hugging Face forwards that know nothing of ours.

The model is the demo model's first layers, with its embedding and head: a third of its work, at its real sizes.
"""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from raysearch.calibration.calibration import Calibration
from raysearch.configuration.compose import compose
from raysearch.configuration.parts import build_data, build_objective
from raysearch.core.mask import Mask
from raysearch.evaluation.replica import Replica
from raysearch.evaluation.totals import total
from raysearch.evaluation.unit import MaskUnit
from raysearch.models.stack import LayerStack
from raysearch.models.verification import packs

pytestmark = [
    pytest.mark.real,
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.usefixtures("environment_described_once"),
]

SAMPLES = 3
LAYERS = 8
MASK = Mask.of(2, 6)
ITEMS = {
    "piqa": "piqa/validation.jsonl",
    "arc_easy": "arc_easy/test.jsonl",
    "hellaswag": "hellaswag/validation.jsonl",
    "commonsense170k": "commonsense170k/sample.jsonl",
}


@contextlib.contextmanager
def without(model, mask):
    """The model with the layers deleted."""
    layers = model.model.layers
    model.model.layers = torch.nn.ModuleList(layer for index, layer in enumerate(layers) if index not in mask)
    try:
        yield model
    finally:
        model.model.layers = layers


@pytest.fixture(scope="module")
def calibrate(data_folder, smollm2_tokenizer):
    """Makes a calibration of the words that name it."""

    def make(*overrides, samples=SAMPLES):
        data = next(word.removeprefix("data=") for word in overrides if word.startswith("data="))
        local = [f"data.path={data_folder / ITEMS[data]}", "data.allow_evaluation_split=true"] if data in ITEMS else []
        if data == "arc_easy":  # in the shape of the rows at hand
            local += ["data.question=query", "data.answer=gold", "data.prompt={question}"]
        config = compose("score", [*local, *overrides, f"data.samples={samples}", "masks=[[]]"])
        objective, chosen = build_objective(config["objective"]), build_data(config["data"])
        drawn = chosen.samples(smollm2_tokenizer, objective.form)
        return Calibration.create(objective, drawn.batch, 2, {"overrides": overrides}, drawn.description)

    return make


@pytest.fixture(scope="module")
def model(smollm2_folder):
    """The demo model's first layers."""
    return AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32, num_hidden_layers=LAYERS).eval()


@pytest.fixture(scope="module")
def replica(model, smollm2_tokenizer):
    """One for all calibrations: each new one tries the model's layers first."""
    return Replica(LayerStack(model), load_tokenizer=lambda: smollm2_tokenizer)


def loss_of(replica, calibration, mask=MASK, packed=None):
    """What the replica says; unless told, it tries for itself whether choices can be packed."""
    name, shards = calibration.fingerprint, range(calibration.n_shards)
    replica.calibrations[name] = calibration
    replica._packing.pop(name, None)
    if packed is not None:
        replica._packing[name] = packed
    answers = [replica.evaluate(MaskUnit(name, shard, (mask,))) for shard in shards]
    return total(answer.values[mask] for answer in answers) / calibration.divisor


def rows_of(calibration):
    """Each row's tokens and which of them are scored, as tensors, with its sample."""
    first = 0
    for shard in calibration.shards:
        for row, length in enumerate(shard.lengths):
            ids = torch.tensor(shard.input_ids[row, :length])
            yield first + int(shard.sample_of_row[row]), ids, torch.tensor(shard.scored[row, :length])
        first += shard.n_samples


@torch.inference_mode()
def scored_logits(model, mask, ids, scored):
    """The logits that predict a row's scored tokens, by a plain forward of the row alone."""
    with without(model, mask):
        predictors = scored[1:].nonzero()[:, 0]
        return model(ids[None], use_cache=False, logits_to_keep=predictors).logits[0].float()


@pytest.mark.parametrize(
    "overrides",
    [["data=commonsense170k"], ["data=commonsense170k", "data.score=all"], ["data=sotu", "data.seq_len=48"]],
)
def test_perplexity(overrides, calibrate, replica, model):
    calibration = calibrate("objective=perplexity", *overrides)
    nats = sum(
        float(functional.cross_entropy(scored_logits(model, MASK, ids, scored), ids[scored], reduction="sum"))
        for _, ids, scored in rows_of(calibration)
    )
    assert loss_of(replica, calibration) == pytest.approx(nats / calibration.n_tokens, rel=1e-5)


@pytest.mark.parametrize("data", ["piqa", "arc_easy", "commonsense170k"])
def test_margin(data, calibrate, replica, model):
    calibration = calibrate("objective=task_margin", f"data={data}")
    golds = [bool(gold) for shard in calibration.shards for gold in shard.choices.gold]
    means: dict[int, dict[bool, list[float]]] = {}
    for (sample, ids, scored), gold in zip(rows_of(calibration), golds, strict=True):
        log_probs = scored_logits(model, MASK, ids, scored).log_softmax(-1)
        mean = float(log_probs.gather(1, ids[scored][:, None]).mean())
        means.setdefault(sample, {True: [], False: []})[gold].append(mean)
    margins = [
        right[0] - sum(wrong) / len(wrong)
        for right, wrong in ((by_right[True], by_right[False]) for by_right in means.values())
    ]
    expected = -sum(margins) / SAMPLES
    assert len(margins) == SAMPLES
    for packed in (True, False):
        assert loss_of(replica, calibration, packed=packed) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert packs(replica.stack, calibration.shards[-1])


@pytest.mark.parametrize("direction", ["forward", "reverse", "js"])
def test_divergence(direction, calibrate, replica, model):
    calibration = calibrate("objective=kl", f"objective.direction={direction}", "data=sotu", "data.seq_len=32")
    nats = 0.0
    for _, ids, scored in rows_of(calibration):
        dense, pruned = (scored_logits(model, mask, ids, scored).double().log_softmax(-1) for mask in (Mask(), MASK))
        middle = ((dense.exp() + pruned.exp()) / 2).log()
        pairs = {"forward": [(dense, pruned)], "reverse": [(pruned, dense)], "js": [(dense, middle), (pruned, middle)]}
        for target, estimate in pairs[direction]:  # torch's own has them the other way round
            nats += float(functional.kl_div(estimate, target, log_target=True, reduction="sum")) / len(pairs[direction])
    assert loss_of(replica, calibration) == pytest.approx(nats / calibration.n_tokens, rel=1e-5)


def test_hidden_cosine(calibrate, replica, model):
    calibration = calibrate("objective=hidden_cosine", "data=sotu", "data.seq_len=32")
    turned = 0.0
    for _, ids, scored in rows_of(calibration):
        states = []
        for mask in (Mask(), MASK):
            with without(model, mask), torch.inference_mode():
                states.append(model.model(ids[None], use_cache=False).last_hidden_state[0, :-1][scored[1:]])
        turned += float((1 - functional.cosine_similarity(states[0].double(), states[1].double(), dim=-1)).sum())
    assert loss_of(replica, calibration) == pytest.approx(turned / calibration.n_tokens, rel=1e-5)


def test_generation(calibrate, replica, model, smollm2_tokenizer):
    """What the masked model writes in a padded batch is what the model without the layers writes by itself."""
    calibration = calibrate(
        "objective=generation_accuracy", "objective.max_new_tokens=4", "data=commonsense170k", "data.style=label"
    )
    mask = Mask.of(6)
    for shard in calibration.shards:
        with replica.stack.bypassed(mask) as masked:
            texts = calibration.objective.model_losses(masked, smollm2_tokenizer, shard).texts
        for text, ids, length in zip(texts, shard.input_ids, shard.lengths, strict=True):
            with without(model, mask), torch.inference_mode():
                new = torch.tensor(ids[None, :length])
                for _ in range(4):
                    following = model(new, use_cache=False, logits_to_keep=1).logits[0, -1].argmax()
                    if int(following) == smollm2_tokenizer.eos_token_id:
                        break
                    new = torch.cat([new, following[None, None]], dim=1)
            assert text.text == smollm2_tokenizer.decode(new[0, length:], skip_special_tokens=True)
    loss = loss_of(replica, calibration, mask)
    assert loss * SAMPLES == round(loss * SAMPLES)


def test_four_choices_take_less_than_six_tenths_of_the_tokens(calibrate):
    from raysearch.calibration.packing import pack
    from raysearch.calibration.padding import cut_by_length

    for data in ("arc_easy", "hellaswag"):
        calibration = calibrate("objective=task_margin", f"data={data}", samples=32)
        parts = [part for shard in calibration.shards for part in cut_by_length(shard, packed=True, pass_tokens=64)]
        packed = sum(pack(part).n_tokens for part in parts)
        naive = sum(shard.n_tokens for shard in calibration.shards)
        assert packed <= 0.6 * naive, f"{data}: {packed} of {naive}"


#: lm-eval's own tasks (``doc_to_…`` as it ships them) on local rows.
TASKS = {
    "piqa": {
        "doc_to_text": "Question: {{goal}}\nAnswer:",
        "doc_to_target": "label",
        "doc_to_choice": "{{[sol1, sol2]}}",
    },
    "arc_easy": {"doc_to_text": "{{query}}", "doc_to_target": "gold", "doc_to_choice": "{{choices}}"},
    "hellaswag": {"doc_to_text": "{{query}}", "doc_to_target": "{{label}}", "doc_to_choice": "choices"},
}


@pytest.mark.parametrize("data", TASKS)
def test_accuracy_is_that_of_lm_eval(data, data_folder, calibrate, replica, model, smollm2_tokenizer, tmp_path):
    """By its own model class and metrics, on the same items, of the pruned model."""
    from datasets import Dataset
    from lm_eval import simple_evaluate
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks.hellaswag.utils import process_docs

    n_items = 2 if data == "hellaswag" else 4  # whose rows are long
    lines = (data_folder / ITEMS[data]).read_text().splitlines()[:n_items]
    rows = [json.loads(line) for line in lines]
    (same := tmp_path / "rows.jsonl").write_text("\n".join(lines))
    config = {
        "task": f"{data}_rows",
        "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
        "test_split": "test",
        "output_type": "multiple_choice",
        **({"process_docs": process_docs} if data == "hellaswag" else {}),
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
        ],
        **TASKS[data],
    }
    with without(model, MASK):
        results = simple_evaluate(
            model=HFLM(pretrained=model, tokenizer=smollm2_tokenizer, batch_size=4, device="cpu"),
            tasks=[ConfigurableTask(config=config)],
            task_manager=TaskManager(include_defaults=False),  # to list lm-eval's own takes seconds
            bootstrap_iters=0,
        )["results"][f"{data}_rows"]
    packed = None
    for normalise, metric in (("none", "acc"), ("characters", "acc_norm")):
        overrides = [
            f"objective.normalise={normalise}",
            f"data={data}",
            f"data.path={same}",
            "data.sampling=sequential",
        ]
        calibration = calibrate("objective=task_accuracy", *overrides, samples=n_items)
        assert 1 - loss_of(replica, calibration, packed=packed) == pytest.approx(results[f"{metric},none"])
        packed = replica._packing[calibration.fingerprint]  # the same items, tried once
