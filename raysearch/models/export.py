"""Exports a pruned model as a checkpoint that transformers and vLLM load without changes, and mostly llama.cpp.

The checkpoint is written beside its destination, loaded again with plain transformers, compared with the masked dense
model, and only then renamed into place. So `out` is either complete and verified, or unchanged.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from raysearch.core.mask import Mask
from raysearch.core.paths import as_path
from raysearch.errors import UnsupportedModelError, UserError, first_line, redact, what_failed
from raysearch.models.card import RECORD, Evidence, Pruned, export_record, mergekit_yaml, model_card
from raysearch.models.config_file import write_config
from raysearch.models.llama_cpp import misread_by_llama_cpp
from raysearch.models.loading import folder_of_files, load_model, load_tokenizer, quiet, tokenizer_fingerprint
from raysearch.models.side_files import CODE_FILES, PROCESSOR_FILES, TEXT_FILES, copy_files, mend_tokenizer_config
from raysearch.models.source import locate
from raysearch.models.spec import LocatedModel, ModelSpec
from raysearch.models.stack import LayerStack
from raysearch.models.surgery import remove_layers, rules_of_place
from raysearch.models.verification import probe_logits, relative_gap, why_mute
from raysearch.models.vllm import misread_by_vllm

_NEW_TOKENS = 24
#: How far the checkpoint's logits may be from the masked model's, relative to the largest, in 16 bits too: both are
#: computed in the same way.
_MOST_GAP = 1e-5


@dataclass(frozen=True)
class ExportResult:
    """The written checkpoint and its verification.

    Args:
        n_layers: Layers that are left.
        parameters: Parameters that are left.
        max_logit_difference: The largest difference between the reloaded checkpoint's logits and the masked dense
            model's, relative to the largest |logit|.
        before: The dense model's continuation of the prompt; None without a prompt.
        after: The reloaded checkpoint's continuation of it; None without a prompt.
        search_id: The search that found the mask, if one did.
        misread_by_vllm: What vLLM would get wrong in it, as the end of a sentence; None if nothing is known.
        url: Where on the Hugging Face Hub it is; None if it was not sent there.
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

    The dtype is that of `spec`, whose device and attention do not matter. `overwrite` replaces an earlier export, and
    never anything else. `prompt` is a text that both models continue greedily, as a spot check.

    Raises:
        UserError: `out` holds something else or cannot be written, the model cannot be loaded, or there is a prompt but
            no tokenizer.
        UnsupportedModelError: The reloaded checkpoint differs from the masked model: its layers depend on their places
            in a way that no config can express.
    """
    out = as_path("--out", out).absolute()
    located = locate(replace(spec, device="cpu", attention="auto"))
    check_destination(located, out, overwrite)
    stack = LayerStack(load_model(located))
    tokenizer = _tokenizer(located, prompt)
    before, writes = _continue(stack.model, tokenizer, prompt), why_mute(stack.model) is None
    with stack.bypassed(mask) as masked:
        expected = probe_logits(masked)
    n_layers, parameters_dense, kind = stack.n_layers, stack.model.num_parameters(), stack.model.config.model_type

    dense_config = copy.deepcopy(stack.model.config.get_text_config())
    with replacing(out) as folder:
        model = remove_layers(stack, mask)
        source = located.path if located.is_hub else None  # a local path says nothing to others
        dtype = str(model.dtype).removeprefix("torch.")
        pruned = Pruned(mask, n_layers, parameters_dense, model.num_parameters(), dtype, source)
        _write_model(folder, model, tokenizer, located, mask, n_layers)
        _write_documents(folder, out.name, pruned, evidence, tokenizer=tokenizer is not None)
        places = rules_of_place(dense_config, model.config.get_text_config())
        del model, stack  # never two models in memory
        reloaded = _reload(folder, located, kind, places)
        gap = relative_gap(probe_logits(reloaded), expected)
        if not gap <= _MOST_GAP:
            raise UnsupportedModelError(
                f"{kind} cannot be exported without {mask}: the reloaded checkpoint's logits differ by {gap:.1e} of "
                f"the largest, since its layers depend on their places{places}; choose another mask or architecture"
            )
        if writes and (why := why_mute(reloaded)) is not None:
            raise UnsupportedModelError(
                f"{kind} cannot be exported without {mask}: transformers does not generate with the layers that are "
                f"left ({why}); choose a mask that keeps a layer of each kind"
            )
        after, misread = _continue(reloaded, tokenizer, prompt), misread_by_vllm(folder, mask, n_layers)
    kept = n_layers - len(mask)
    return ExportResult(out, kept, pruned.parameters, parameters_dense, gap, before, after, evidence.search_id, misread)


def check_destination(model: LocatedModel, out: Path, overwrite: bool) -> None:
    """Refuse to write over anything but an export with `overwrite`, and over the dense model in any case."""
    whole, itself = out.resolve(), model.folder.resolve()
    if not model.is_hub and itself.is_relative_to(whole):
        where = "" if itself == whole else f" in {itself.relative_to(whole)}"
        raise UserError(f"--out={out} holds the dense model itself{where}; write to another folder")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out={out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        if not (out / RECORD).is_file():
            raise UserError(f"--out={out} holds other things than an export; name another folder")
        if not overwrite:
            raise UserError(f"--out={out} is not empty; name another folder, or replace it with --overwrite")


def _tokenizer(model: LocatedModel, prompt: str | None) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer; None where there is none and no prompt needs it."""
    try:
        return load_tokenizer(model)
    except UserError:
        if prompt is not None:
            raise
        return None


def _continue(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, prompt: str | None) -> str | None:
    """Return the model's greedy continuation of the prompt, in one line, with the space before its first word."""
    if tokenizer is None or prompt is None:
        return None
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    n_tokens = inputs["input_ids"].shape[1]
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if n_tokens == 0:
        raise UserError(f"--prompt={prompt} holds no token to go on from; give a text, or leave it out")
    if most is not None and n_tokens > most:
        raise UserError(f"--prompt holds {n_tokens:,} tokens, and the model has {most:,} positions; give a shorter one")
    # The last new token is not fed in, so that it needs no position.
    new_tokens = _NEW_TOKENS if most is None else min(_NEW_TOKENS, most - n_tokens + 1)
    generator: Any = model
    try:
        with torch.inference_mode(), quiet():
            tokens = generator.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
    except (ValueError, RuntimeError) as error:  # as of a hybrid without a layer of attention
        raise UnsupportedModelError(
            f"--prompt={prompt} cannot be continued: transformers does not generate with this "
            f"{model.config.model_type} ({first_line(error)}); leave it out, or choose another mask"
        ) from error
    before, whole = (str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in (tokens[0, :n_tokens], tokens[0]))
    return re.sub(r"\s+", " ", whole.removeprefix(before)).rstrip()


def _write_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    located: LocatedModel,
    mask: Mask,
    n_layers: int,
) -> None:
    """Write a pruned model, and beside it what its source has: tokenizer, processor and code, as they are there.

    Args:
        folder: Where to.
        model: The pruned model.
        tokenizer: The dense model's, if it has one.
        located: The dense model.
        mask: The layers that were removed.
        n_layers: N, the layers of the dense model.
    """
    has_more_than_text = model.config.get_text_config() is not model.config
    kind, own_code = model.config.model_type, located.trust_remote_code
    patterns = [*TEXT_FILES, *(PROCESSOR_FILES if has_more_than_text else ()), *(CODE_FILES if own_code else ())]
    source = folder_of_files(located, patterns)
    with quiet():
        try:
            _save_weights(folder, model, source)
            write_config(folder, model, source, mask.kept(n_layers), n_layers, located)
        except NotImplementedError as error:  # as of a quantisation that is not undone, nor written again
            raise UnsupportedModelError(
                f"{kind} cannot be exported: transformers does not write its quantised weights "
                f"({first_line(error)}); use the model before it was quantised"
            ) from error
        except (StrictDataclassError, RuntimeError, ValueError) as error:  # as where its only layer of a kind is gone
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
    for weights in folder.glob("*.safetensors"):  # written readable by the owner only
        weights.chmod((folder / "config.json").stat().st_mode)


def _save_weights(folder: Path, model: PreTrainedModel, source: Path | None) -> None:
    """Write a pruned model as transformers does, quantised only where it is in memory.

    Of a model whose weights it has dequantised, transformers would write them quantised anew, without the config that
    says so. A model of the same config, which was never read from such a file, is written as it is.
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
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error).split('. ')[0]}"
        if "ignore_mismatched_sizes" in str(error):
            reason = "its weights have other shapes than its config says, as where they depend on a layer's place"
        raise UnsupportedModelError(
            f"{kind} cannot be exported: transformers does not load the pruned checkpoint ({reason}){places}; choose "
            "another mask or architecture"
        ) from error
    reloaded: PreTrainedModel = pair[0]
    if wrong := sorted(str(name) for kind_of_key in pair[1].values() for name in kind_of_key):
        raise UnsupportedModelError(
            f"{kind} cannot be exported: the pruned checkpoint has other weights than its config asks for "
            f"({wrong[0]} …){places}; choose another mask or architecture"
        )
    return reloaded.eval()


def _write_documents(folder: Path, name: str, pruned: Pruned, evidence: Evidence, *, tokenizer: bool) -> None:
    place = folder, pruned.mask, pruned.n_layers_dense
    misread = {"misread": misread_by_llama_cpp(*place), "misread_by_vllm": misread_by_vllm(*place)}
    documents = {
        "README.md": redact(model_card(pruned, evidence, name, tokenizer=tokenizer, **misread)),
        "mergekit.yaml": redact(mergekit_yaml(pruned)),
        RECORD: export_record(pruned.mask, pruned.n_layers_dense, evidence),
    }
    for file, text in documents.items():
        (folder / file).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Yield a new folder beside `out` that replaces it on success and is deleted on failure.

    Another export to the same place waits, so that what lies there is of one that was killed: a half copy, which is
    removed, or what that one was replacing, which is put back if nothing has taken its place.
    """
    partial, replaced, lock = (out.with_name(f".{out.name}.{what}") for what in ("partial", "replaced", "lock"))

    def tidy() -> None:
        if replaced.exists() and not out.exists():
            os.rename(replaced, out)
        for left in (partial, replaced):
            shutil.rmtree(left, ignore_errors=True)

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()  # where no file can be made, as in /proc, the next line would wait for ever
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
        if not isinstance(error, OSError) and "(os error " not in str(error):  # the wording of libraries in Rust
            raise
        cause = what_failed(error)
        remedy = "free some space on its disk" if "No space" in cause else "name another folder"
        raise UserError(f"--out={out} cannot be written ({cause}); {remedy}") from error
