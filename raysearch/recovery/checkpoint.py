"""Writes the recovered model as an ordinary checkpoint, with its adapter and a card that shows the evidence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from raysearch.checkpoints.adapter import ADAPTER_FOLDER, Adapter
from raysearch.checkpoints.card import RECORD, render_card, runtime_values
from raysearch.checkpoints.checkpoint import CONFIG, Checkpoint, read_json
from raysearch.checkpoints.config_file import write_config
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.pruning import PrunedCheckpoint
from raysearch.checkpoints.runtimes import readings
from raysearch.core.estimate import estimate_text
from raysearch.core.json import plain
from raysearch.core.mask import Mask
from raysearch.core.paths import write_atomically
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError
from raysearch.models.changed_values import with_values_of
from raysearch.models.export import replacing
from raysearch.models.loading import quiet
from raysearch.models.spec import ModelSpec
from raysearch.models.verification import probe_logits, relative_gap, tolerance
from raysearch.recovery.recovery_record import ThreeNumbers, Training
from raysearch.recovery.spec import RecoveryOptions
from raysearch.searching.stages import Stage
from raysearch.text.redaction import redact, redacted

#: The file of the changed tensors in the folder of trained values, by their names in the pruned model, if neither an
#: adapter nor all weights were trained.
CHANGED = "changed.safetensors"
#: The file in that folder with the history of the training, which marks its end.
DONE = "history.json"


@dataclass(frozen=True)
class RecoveryEvidence:
    """The evidence for a recovered model.

    Args:
        recovery_id: The id of the recovery.
        search_id: The id of the search that found the mask.
        model: The name of the dense model.
        mask: The removed layers.
        n_layers_dense: The number of layers of the dense model.
        method: The options of the training.
        rows: The number of rows for training and for the held-out loss.
        data: The description of the data.
        left_out: The number of rows that were left out, by the reason.
        training: The training.
        version: The version of raysearch.
        size: The size of the mask, as ``remove=`` counts it; None for the number of its layers.
        stages: The stages, if layers were removed and the model was recovered in turns.
    """

    recovery_id: str
    search_id: str
    model: str
    mask: Mask
    n_layers_dense: int
    method: RecoveryOptions
    rows: int
    data: Mapping[str, Any]
    left_out: Mapping[str, int]
    training: Training
    version: str
    size: int | None = None
    stages: tuple[Stage, ...] = ()

    @property
    def sites(self) -> Sites:
        """The sites of the dense model; the evidence does not contain their sizes, which are all 1 here."""
        return Sites.of_equal_layers(self.n_layers_dense)

    @property
    def removed(self) -> str:
        """How much of the dense model is removed: ``5 of its 30 layers``; of halves, if there are single ones."""
        if self.mask.halves:
            return f"{self.mask.n_halves} of the {2 * self.n_layers_dense} halves of its layers"
        return f"{len(self.mask)} of its {self.n_layers_dense} layers"


def write_checkpoint(model: ModelSpec, trained: Path, out: Path, evidence: RecoveryEvidence) -> None:
    """Merge a pruned checkpoint with the trained adapter or weights, and write it with its other files.

    The tensors that were trained are replaced, all other bytes are those of the pruned checkpoint. If its files have
    no such tensors, for example because they are quantised, transformers writes what it has in memory. The result is
    loaded again and compared with the trained model before anything is replaced.

    Args:
        model: The pruned checkpoint.
        trained: The folder of the adapter, the weights, or the changed tensors alone (`CHANGED`).
        out: The folder to write.
        evidence: The evidence for the card.

    Raises:
        UnsupportedModelError: The written checkpoint is not the trained model.
    """
    with replacing(out) as folder, quiet():
        load = partial(AutoModelForCausalLM.from_pretrained, trust_remote_code=model.trust_remote_code)
        parameters: Sequence[str]
        if (trained / CHANGED).is_file():
            changed = load_file(trained / CHANGED)
            parameters = [*changed]
            tuned: Any = load(model.path, dtype="auto")
            set_parameters(tuned, changed)
            expected = probe_logits(tuned.eval())
        elif evidence.method.method == "full":
            config = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
            tuned = load(trained, dtype=config.dtype)
            parameters = [name for name, _ in tuned.named_parameters()]
            expected = probe_logits(tuned.eval())
        else:
            adapted: Any = PeftModel.from_pretrained(load(model.path, dtype="auto"), str(trained))
            expected = probe_logits(adapted.eval())
            tuned = adapted.merge_and_unload()
            parameters = Adapter.open(trained).parameters_in([name for name, _ in tuned.named_parameters()])
            _write_adapter(trained, folder / ADAPTER_FOLDER)
        not_replaced = _write_files(tuned, parameters, model, folder, trained.parent, evidence)
        for weights in folder.glob("**/*.safetensors"):  # were written as readable by the owner only
            weights.chmod((folder / CONFIG).stat().st_mode)
        gap = relative_gap(probe_logits(load(folder).eval()), expected)
        if not gap <= 10 * tolerance(tuned.dtype):  # merging adds numbers in another order
            raise UnsupportedModelError(
                f"the recovered model cannot be written: its logits differ by {gap:.1e} of the largest when it is "
                "loaded again; use recovery.method=full, or another architecture"
            )
        write_card(folder, out.name, evidence, (), not_replaced=not_replaced)


@torch.no_grad()
def set_parameters(model: PreTrainedModel, values: Mapping[str, Tensor]) -> None:
    """Give some parameters of a model other values, in their own dtype.

    Args:
        model: The model.
        values: The values by the names of the parameters.
    """
    parameters = dict(model.named_parameters())
    for name, value in values.items():
        parameters[name].copy_(value)


def _write_files(
    tuned: PreTrainedModel,
    parameters: Sequence[str],
    model: ModelSpec,
    folder: Path,
    scratch: Path,
    evidence: RecoveryEvidence,
) -> str | None:
    """Write the files of a trained model, except its card.

    Args:
        tuned: The model in memory.
        parameters: The names of the trained parameters.
        model: The pruned checkpoint.
        folder: The folder to write, which may have an adapter.
        scratch: A folder on the same disk for temporary files.
        evidence: The evidence, with the number of layers.

    Returns:
        Why the files of the pruned checkpoint do not hold the trained tensors, so that transformers has written the
        model from memory; None if they do.

    Raises:
        UnsupportedModelError: transformers would read another config than the trained model's.
    """
    pruned = Path(model.path)
    n_layers = len(evidence.sites.blocks(evidence.mask))
    with TemporaryDirectory(dir=scratch) as values:
        try:
            source = with_values_of(tuned, parameters, Checkpoint.open(pruned), n_layers, Path(values))
            PrunedCheckpoint.of(source, KeptBlocks.whole(range(n_layers), n_layers)).write(folder)
        except UnsupportedModelError as error:
            not_replaced = str(error)
        else:
            shutil.copyfile(pruned / CONFIG, folder / CONFIG)
            return None
    tuned.save_pretrained(folder)
    _write_config(folder, pruned, model)
    for path in Checkpoint.open(pruned).other_files():
        if not (folder / path).exists():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pruned / path, folder / path)
    return not_replaced


def _write_config(folder: Path, pruned: Path, model: ModelSpec) -> None:
    """Write the config of a trained model in the form of the pruned checkpoint's.

    Args:
        folder: The trained model, with the config that transformers has written.
        pruned: The folder of the pruned checkpoint.
        model: The pruned checkpoint.

    Raises:
        UnsupportedModelError: transformers would read another config from it.
    """
    saved = read_json(folder / CONFIG)
    expected = AutoConfig.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    config = read_json(pruned / CONFIG)
    if "text_config" in config and config.get("model_type") != saved.get("model_type"):  # only the text part is trained
        config = config["text_config"] | {"architectures": saved["architectures"]}
    if "quantization_config" not in saved:
        config.pop("quantization_config", None)
    differing = write_config(folder, config, expected, predicts=False, trust_remote_code=model.trust_remote_code)
    if differing:
        raise UnsupportedModelError(
            f"the recovered model cannot be written: transformers reads another {differing[0]} from its config; use "
            "another architecture"
        )


def _write_adapter(trained: Path, folder: Path) -> None:
    """Copy an adapter without the path of its pruned checkpoint, which is a folder of this machine."""
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns(DONE, "README.md"))
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"base_model_name_or_path": None}
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_card(
    folder: Path, name: str, evidence: RecoveryEvidence, numbers: Sequence[ThreeNumbers], *, not_replaced: str | None
) -> None:
    """Write the model card and the record for machines.

    Args:
        folder: The folder of the checkpoint.
        name: The name of the checkpoint, for the card.
        evidence: The evidence.
        numbers: The numbers of the three models; none before they are assessed.
        not_replaced: Why transformers wrote the model from memory, see `why_not_replaced`.
    """
    mask = evidence.mask.parts
    assessed = {
        three.metric.title: {
            "dense": three.dense.value,
            "pruned": three.pruned.value,
            "recovered": three.recovered.value,
        }
        for three in numbers
    }
    record: dict[str, Any] = {
        "recovery_id": evidence.recovery_id,
        "mask": mask,
        "n_layers_dense": evidence.n_layers_dense,
        "evidence": {
            **asdict(replace(evidence, stages=())),
            "mask": mask,
            "stages": plain(evidence.stages, tuple[Stage, ...]),
        },
        "assessed": assessed,
        "not_replaced": not_replaced,
    }
    if evidence.size is None:
        del record["evidence"]["size"]
    if not evidence.stages:
        del record["evidence"]["stages"]
    card = render_card(
        Path(__file__).with_name("card.md.j2"),
        evidence=evidence,
        name=name,
        numbers=numbers,
        shown=estimate_text,
        tokenizer=True,
        auto_class="AutoModelForCausalLM",
        **runtime_values(readings(folder, evidence.mask, evidence.sites), name, was_run=True),
        has_adapter=(folder / ADAPTER_FOLDER).is_dir(),
        not_replaced=not_replaced,
    )
    write_atomically(folder / "README.md", redact(card))
    write_atomically(folder / RECORD, json.dumps(redacted(record), indent=2) + "\n")


def written_by(out: Path) -> str | None:
    """Return the id of the recovery that wrote a checkpoint; None if no recovery did."""
    return _recorded(out, "recovery_id")


def why_not_replaced(out: Path) -> str | None:
    """Return why transformers wrote a recovered checkpoint from memory; None if its tensors were replaced in files."""
    return _recorded(out, "not_replaced")


def _recorded(out: Path, key: str) -> str | None:
    """Return a text of a checkpoint's record for machines; None if there is none."""
    try:
        value = json.loads((out / RECORD).read_text(encoding="utf-8")).get(key)
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, str) else None
