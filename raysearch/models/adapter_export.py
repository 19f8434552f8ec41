"""Exports a model with an adapter: its merged values in its own files, and the adapter for the model without them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from raysearch.checkpoints.adapter import ADAPTER_FOLDER, REMEDY, Adapter
from raysearch.checkpoints.checkpoint import Checkpoint
from raysearch.checkpoints.kept_blocks import KeptBlocks
from raysearch.checkpoints.layer_names import LayerNames
from raysearch.errors import UnsupportedModelError
from raysearch.models.adapter import check_fit
from raysearch.models.changed_values import with_values_of
from raysearch.models.loading import load_config, load_model, without_weights
from raysearch.models.spec import LocatedModel


@dataclass(frozen=True)
class MergedModel:
    """A dense model with its adapter.

    Args:
        model: The model, with its adapter.
        files: The files of the dense model, with the merged values.
        names: The names of its layers in memory.
    """

    model: LocatedModel
    files: Checkpoint
    names: LayerNames

    @classmethod
    def of(cls, model: LocatedModel, source: Path, n_layers: int, scratch: Path) -> MergedModel:
        """Merge an adapter in memory, and write the tensors that it changes.

        Args:
            model: The model, with its adapter.
            source: The folder of the dense model.
            n_layers: N, its layers.
            scratch: A new folder for the changed tensors. It must exist as long as `files` is used.

        Returns:
            The merged model's files and names.

        Raises:
            UserError: The model or the adapter cannot be read.
            UnsupportedModelError: The files of the dense model cannot hold the merged values.
        """
        adapter = Adapter.open(Path(str(model.adapter)))
        merged = load_model(model if model.digest is not None else replace(model, dtype="auto"))  # as in the files
        parameters = [name for name, _ in merged.named_parameters()]
        scratch.mkdir()
        try:
            files = with_values_of(
                merged, adapter.parameters_in(parameters), Checkpoint.open(source), n_layers, scratch
            )
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"model={model.name} cannot be exported with model.adapter={model.adapter} merged: {error}; {REMEDY}"
            ) from error
        return cls(model, files, LayerNames.of(parameters, n_layers))

    def write_adapter(self, folder: Path, kept: KeptBlocks) -> None:
        """Write the adapter for the model without some parts next to the pruned model, and check that it fits.

        Nothing is written if the adapter changes none of the kept modules.

        Args:
            folder: The folder of the pruned model.
            kept: The layers of the pruned model.

        Raises:
            UserError: peft makes other tensors for the pruned model.
        """
        pruned = Adapter.open(Path(str(self.model.adapter))).pruned(self.names, kept)
        if pruned is None:
            return
        pruned.write(folder / ADAPTER_FOLDER)
        without = self.model.at(folder)
        skeleton = without_weights(without, load_config(without))
        what = f"model.adapter={self.model.adapter} does not fit the pruned model"
        check_fit(Adapter.open(folder / ADAPTER_FOLDER), skeleton, what, REMEDY)
