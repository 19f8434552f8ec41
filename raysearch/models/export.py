"""Exports a pruned model as a checkpoint that transformers, vLLM and, in most cases, llama.cpp load without changes.

The checkpoint is written next to its destination, loaded again with plain transformers, compared with the masked dense
model, and only then renamed. So `out` is either complete and verified, or unchanged.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from raysearch.core.mask import Mask
from raysearch.core.paths import as_path
from raysearch.core.site import Sites
from raysearch.errors import UnsupportedModelError, UserError
from raysearch.models.card import RECORD, Evidence, Pruned, export_record, mergekit_yaml, model_card
from raysearch.models.config_file import write_config
from raysearch.models.llama_cpp import misread_by_llama_cpp
from raysearch.models.loading import load_model, load_tokenizer
from raysearch.models.reading import folder_of_files, quiet, tokenizer_fingerprint
from raysearch.models.side_files import CODE_FILES, PROCESSOR_FILES, TEXT_FILES, copy_files, mend_tokenizer_config
from raysearch.models.source import locate
from raysearch.models.spec import LocatedModel, ModelSpec
from raysearch.models.stack import LayerStack
from raysearch.models.surgery import remove_layers, rules_of_place
from raysearch.models.verification import continuation, probe_logits, relative_gap, why_mute
from raysearch.models.vllm import misread_by_vllm
from raysearch.text.redaction import redact
from raysearch.text.sentences import first_line, what_failed

#: The largest difference between the checkpoint's logits and the masked model's, relative to the largest |logit|. It
#: holds for 16 bits too, since both models compute in the same way.
_LARGEST_GAP = 1e-5


@dataclass(frozen=True)
class ExportResult:
    """The written checkpoint and its verification.

    Args:
        out: The folder of the checkpoint.
        n_layers: The layers of the pruned model.
        parameters: The parameters of the pruned model.
        parameters_dense: The parameters of the dense model.
        max_logit_difference: The largest difference between the reloaded checkpoint's logits and the masked dense
            model's, relative to the largest |logit|.
        before: The dense model's continuation of the prompt; None without a prompt.
        after: The reloaded checkpoint's continuation of it; None without a prompt.
        search_id: The search that found the mask; None if there is no such search.
        misread_by_vllm: Why vLLM would run another model, see `raysearch.models.vllm.misread_by_vllm`.
        url: The address of the repository on the Hugging Face Hub; None if the checkpoint was not pushed.
    """

    out: Path
    n_layers: int
    parameters: int
    parameters_dense: int
    max_logit_difference: float
    before: str | None
    after: str | None
    search_id: str | None
    misread_by_vllm: str | None = None
    url: str | None = None


def export_checkpoint(
    spec: ModelSpec, mask: Mask, out: Path, *, overwrite: bool, evidence: Evidence, prompt: str | None = None
) -> ExportResult:
    """Write the model without the mask's layers as an ordinary checkpoint, on the CPU.

    Args:
        spec: The dense model, in the dtype of the checkpoint. Its device and attention are ignored.
        mask: The layers to remove.
        out: The folder to write.
        overwrite: Whether to replace an earlier export in that folder. Other folders are never replaced.
        evidence: The search that found the mask, for the model card.
        prompt: A text that both models continue greedily, as a spot check; None for no check.

    Returns:
        The written checkpoint and its verification.

    Raises:
        UserError: `out` holds something else or cannot be written, the model cannot be loaded, or there is a prompt but
            no tokenizer.
        UnsupportedModelError: The reloaded checkpoint differs from the masked model: its layers depend on their places,
            and no config can express how.
    """
    out = as_path("--out", out).absolute()
    located = locate(replace(spec, device="cpu", attention="auto"))
    check_destination(located, out, overwrite)
    stack = LayerStack(load_model(located))
    tokenizer = _tokenizer(located, prompt)
    before = continuation(stack.model, tokenizer, prompt)
    dense_generates = why_mute(stack.model) is None
    with stack.bypassed(mask) as masked:
        expected = probe_logits(masked)
    sites = stack.sites
    parameters_dense = stack.model.num_parameters()
    kind = stack.model.config.model_type
    dense_config = copy.deepcopy(stack.model.config.get_text_config())
    with replacing(out) as folder:
        model = remove_layers(stack, mask)
        source = located.path if located.is_hub else None  # a local path is of no use to other people
        dtype = str(model.dtype).removeprefix("torch.")
        pruned = Pruned(mask, sites, parameters_dense, model.num_parameters(), dtype, source)
        _write_model(folder, model, tokenizer, located, mask, sites)
        _write_documents(folder, out.name, pruned, evidence, tokenizer=tokenizer is not None)
        places = rules_of_place(dense_config, model.config.get_text_config())
        del model, stack  # so that there is one model in memory at a time
        reloaded = _reload(folder, located, kind, places)
        gap = relative_gap(probe_logits(reloaded), expected)
        if not gap <= _LARGEST_GAP:
            raise UnsupportedModelError(
                f"{kind} cannot be exported without {mask}: the reloaded checkpoint's logits differ by {gap:.1e} of "
                f"the largest, since its layers depend on their places{places}; choose another mask or architecture"
            )
        if dense_generates and (why := why_mute(reloaded)) is not None:
            raise UnsupportedModelError(
                f"{kind} cannot be exported without {mask}: transformers does not generate with the layers that are "
                f"left ({why}); choose a mask that keeps a layer of each kind"
            )
        after = continuation(reloaded, tokenizer, prompt)
        misread = misread_by_vllm(folder, mask, sites)
    return ExportResult(
        out=out,
        n_layers=len(sites.kept_layers(mask)),
        parameters=pruned.parameters,
        parameters_dense=parameters_dense,
        max_logit_difference=gap,
        before=before,
        after=after,
        search_id=evidence.search_id,
        misread_by_vllm=misread,
    )


def check_destination(model: LocatedModel, out: Path, overwrite: bool) -> None:
    """Refuse a destination that must not be replaced.

    Args:
        model: The dense model, which is never replaced.
        out: The folder to write.
        overwrite: Whether an earlier export in that folder may be replaced.

    Raises:
        UserError: `out` is a file, contains the dense model or other files, or an export without `overwrite`.
    """
    destination = out.resolve()
    dense_folder = model.folder.resolve()
    if not model.is_hub and dense_folder.is_relative_to(destination):
        where = "" if dense_folder == destination else f" in {dense_folder.relative_to(destination)}"
        raise UserError(f"--out={out} holds the dense model itself{where}; write to another folder")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out={out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        if not (out / RECORD).is_file():
            raise UserError(f"--out={out} holds other things than an export; name another folder")
        if not overwrite:
            raise UserError(f"--out={out} is not empty; name another folder, or replace it with --overwrite")


def _tokenizer(model: LocatedModel, prompt: str | None) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer; None if it has none and there is no prompt."""
    try:
        return load_tokenizer(model)
    except UserError:
        if prompt is not None:
            raise
        return None


def _write_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    located: LocatedModel,
    mask: Mask,
    sites: Sites,
) -> None:
    """Write a pruned model, and copy the other files of its source: tokenizer, processor and code.

    Args:
        folder: The folder to write into.
        model: The pruned model.
        tokenizer: The dense model's tokenizer, if it has one.
        located: The dense model.
        mask: The removed layers.
        sites: The sites of the dense model.
    """
    kind = model.config.model_type
    own_code = located.trust_remote_code
    patterns = [*TEXT_FILES]
    if model.config.get_text_config() is not model.config:  # the model reads more than text
        patterns += PROCESSOR_FILES
    if own_code:
        patterns += CODE_FILES
    source = folder_of_files(located, patterns)
    with quiet():
        try:
            _save_weights(folder, model, source)
            write_config(folder, model, source, sites.kept_layers(mask), sites.n_layers, located)
        except NotImplementedError as error:
            # Such as a quantisation that transformers can neither remove nor write.
            raise UnsupportedModelError(
                f"{kind} cannot be exported: transformers does not write its quantised weights "
                f"({first_line(error)}); use the model before it was quantised"
            ) from error
        except (StrictDataclassError, RuntimeError, ValueError) as error:
            # Such as when the only layer of a kind is removed.
            raise UnsupportedModelError(
                f"{kind} cannot be exported without {mask}: transformers does not write it "
                f"({first_line(error).split(' [')[0]}); choose another mask or architecture"
            ) from error
        if source is not None:
            copy_files(source, folder, patterns)
        elif tokenizer is not None:
            tokenizer.save_pretrained(folder)
    mend_tokenizer_config(folder, own_code=own_code)
    if tokenizer is not None:
        written = load_tokenizer(replace(located, location=str(folder), is_hub=False, gguf=None))
        if tokenizer_fingerprint(written) != tokenizer_fingerprint(tokenizer):
            raise UnsupportedModelError(
                f"{kind} cannot be exported: its tokenizer would read texts otherwise; use another checkpoint of it"
            )
    for weights in folder.glob("*.safetensors"):  # save_pretrained makes them readable by the owner only
        weights.chmod((folder / "config.json").stat().st_mode)


def _save_weights(folder: Path, model: PreTrainedModel, source: Path | None) -> None:
    """Write a pruned model by transformers, quantised only if its weights in memory are.

    If transformers has dequantised the weights of a model, it would quantise them again when it writes them, without a
    config of the quantisation. So they are written as those of a new model of the same config.
    """
    if source is None or "quantization_config" not in json.loads((source / "config.json").read_text(encoding="utf-8")):
        model.save_pretrained(folder)
    elif getattr(model.config, "quantization_config", None) is not None:
        model.save_pretrained(folder, save_original_format=False)
    else:
        with torch.device("meta"):
            plain = type(model)(model.config)
        plain.load_state_dict(model.state_dict(), assign=True)
        plain.generation_config = model.generation_config
        plain.save_pretrained(folder)


def _reload(folder: Path, model: LocatedModel, kind: str, places: str) -> PreTrainedModel:
    try:
        with quiet():
            # With output_loading_info, from_pretrained returns a pair; its annotations do not say so.
            pair: Any = AutoModelForCausalLM.from_pretrained(
                folder, trust_remote_code=model.trust_remote_code, output_loading_info=True
            )
            reloaded: PreTrainedModel
            names_by_kind: Mapping[str, Iterable[Any]]
            reloaded, names_by_kind = pair
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error).split('. ')[0]}"
        if "ignore_mismatched_sizes" in str(error):
            reason = "its weights have other shapes than its config says, for example because they depend on a layer's "
            reason += "place"
        raise UnsupportedModelError(
            f"{kind} cannot be exported: transformers does not load the pruned checkpoint ({reason}){places}; choose "
            "another mask or architecture"
        ) from error
    if wrong := sorted(str(name) for names in names_by_kind.values() for name in names):
        raise UnsupportedModelError(
            f"{kind} cannot be exported: the pruned checkpoint has other weights than its config describes "
            f"({wrong[0]} …){places}; choose another mask or architecture"
        )
    return reloaded.eval()


def _write_documents(folder: Path, name: str, pruned: Pruned, evidence: Evidence, *, tokenizer: bool) -> None:
    card = model_card(
        pruned,
        evidence,
        name,
        tokenizer=tokenizer,
        misread=misread_by_llama_cpp(folder, pruned.mask, pruned.sites),
        misread_by_vllm=misread_by_vllm(folder, pruned.mask, pruned.sites),
    )
    documents = {
        "README.md": redact(card),
        "mergekit.yaml": redact(mergekit_yaml(pruned)),
        RECORD: export_record(pruned.mask, pruned.sites, evidence),
    }
    for file, text in documents.items():
        (folder / file).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield a new folder next to `out` that replaces it on success and is deleted on failure.

    Another export to the same folder waits. So folders of these names that already exist were left by an export that
    was killed: an incomplete copy is removed, and a folder that was being replaced is put back if `out` is missing.

    Raises:
        UserError: `out` cannot be written.
    """
    partial = out.with_name(f".{out.name}.partial")
    replaced = out.with_name(f".{out.name}.replaced")
    lock = out.with_name(f".{out.name}.lock")

    def tidy() -> None:
        if replaced.exists() and not out.exists():
            os.rename(replaced, out)
        for leftover in (partial, replaced):
            shutil.rmtree(leftover, ignore_errors=True)

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()  # if no file can be created, as in /proc, FileLock would wait forever
        with FileLock(lock, fallback_to_soft=False):
            try:
                tidy()
                partial.mkdir()
                yield partial
                if out.exists():
                    os.rename(out, replaced)
                os.rename(partial, out)
            finally:
                tidy()
                lock.unlink(missing_ok=True)
    except Exception as error:
        if not isinstance(error, OSError) and "(os error " not in str(error):  # how libraries in Rust word it
            raise
        cause = what_failed(error)
        remedy = "free some space on its disk" if "No space" in cause else "name another folder"
        raise UserError(f"--out={out} cannot be written ({cause}); {remedy}") from error
