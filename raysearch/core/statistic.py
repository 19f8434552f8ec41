"""Statistics of the dense model's layers on the calibration.

A searcher may request a statistic as well as masks: ``influence = yield Statistic.BLOCK_INFLUENCE``. A statistic is an
array. Its first axis is the samples of the calibration, so that shards are computed separately and joined in shard
order. A statistic that is not by sample (of weights, or of gradients summed before their magnitude is taken) has one
row.

Notation: h_i is the hidden state that enters layer i; h_N is the hidden state after the last layer.

Each statistic of the N layers has the same of their 2 N halves, in the order of the model: `Statistic.of_halves`.
"""

from __future__ import annotations

from enum import Enum

from raysearch.core.mask import Mask
from raysearch.core.site import Sites


class Statistic(Enum):
    """A statistic by name; `raysearch.models.statistics` computes them."""

    #: 1 - cos(h_i, h_{i+1}), mean over a sample's tokens, [S, N].
    #: Source: Block Influence of Men et al. 2024 (ShortGPT, arXiv 2403.03853), equation 1.
    BLOCK_INFLUENCE = "block_influence"

    #: arccos(cos(h_a, h_b)) / pi at a sample's last token, by a and b, [S, N + 1, N + 1].
    #: Source: Gromov et al. 2024 (arXiv 2403.17887), equation 7.
    ANGULAR_DISTANCE_LAST = "angular_distance_last"

    #: The same distance, mean over a sample's tokens, [S, N + 1, N + 1].
    ANGULAR_DISTANCE_ALL = "angular_distance_all"

    #: |h_b| / |h_a|, mean over a sample's tokens, by a and b, [S, N + 1, N + 1]; see `raysearch.core.scale`.
    NORM_RATIO = "norm_ratio"

    #: d loss_s / d a_i at a_i = 1, [S, N]. The gate a_i multiplies the change that layer i makes to its input. loss_s
    #: is the sample's mean loss per scored token.
    #: Source: Jansen et al. 2026 (arXiv 2602.00161), in which the gate multiplies the outputs of both sub-layers.
    GATE_GRADIENTS = "gate_gradients"

    #: sum |W| over all weights of layer i, norms included, [1, N].
    #: Source: Kim et al. 2024 (Shortened LLaMA, arXiv 2402.02834), magnitude criterion.
    MAGNITUDE_L1 = "magnitude_l1"

    #: sum W^2 over the same weights (no root), [1, N].
    MAGNITUDE_L2 = "magnitude_l2"

    #: sum |W * d loss / d W| over the same weights, with the gradient of the calibration's mean loss, [1, N].
    #: Source: Kim et al. 2024 (Shortened LLaMA, arXiv 2402.02834), Taylor criterion.
    TAYLOR = "taylor"

    BLOCK_INFLUENCE_HALVES = "block_influence_halves"
    ANGULAR_DISTANCE_LAST_HALVES = "angular_distance_last_halves"
    ANGULAR_DISTANCE_ALL_HALVES = "angular_distance_all_halves"
    NORM_RATIO_HALVES = "norm_ratio_halves"
    GATE_GRADIENTS_HALVES = "gate_gradients_halves"
    MAGNITUDE_L1_HALVES = "magnitude_l1_halves"
    MAGNITUDE_L2_HALVES = "magnitude_l2_halves"
    TAYLOR_HALVES = "taylor_halves"

    def __str__(self) -> str:
        return self.value

    @property
    def is_of_halves(self) -> bool:
        """Whether it is of halves of layers."""
        return self.value.endswith(_HALVES)

    @property
    def of_halves(self) -> Statistic:
        """The same statistic of the halves of layers."""
        return self if self.is_of_halves else Statistic(self.value + _HALVES)

    @property
    def of_layers(self) -> Statistic:
        """The same statistic of whole layers."""
        return Statistic(self.value.removesuffix(_HALVES))

    @property
    def by_sample(self) -> bool:
        """Whether the first axis is the samples. Otherwise it has length one."""
        return self.of_layers not in (Statistic.MAGNITUDE_L1, Statistic.MAGNITUDE_L2, Statistic.TAYLOR)

    @property
    def needs_gradients(self) -> bool:
        """Whether it needs a backward pass, and so depends on the objective as well as on the model and the texts."""
        return self.of_layers in (Statistic.GATE_GRADIENTS, Statistic.TAYLOR)

    @property
    def is_of_depths(self) -> bool:
        """Whether its axes are the hidden states before, between and after the layers or halves."""
        of_depths = (Statistic.ANGULAR_DISTANCE_LAST, Statistic.ANGULAR_DISTANCE_ALL, Statistic.NORM_RATIO)
        return self.of_layers in of_depths

    @property
    def passes(self) -> int:
        """The number of forward passes of all layers over the calibration; a backward pass repeats them."""
        if self.of_layers in (Statistic.MAGNITUDE_L1, Statistic.MAGNITUDE_L2):
            return 0
        return 2 if self.needs_gradients else 1

    def shape(self, sites: Sites) -> tuple[int, ...]:
        """Return the axes after the first, for a model with these layers."""
        size = sites.n_layers * (2 if self.is_of_halves else 1)
        return (size + 1, size + 1) if self.is_of_depths else (size,)


_HALVES = "_halves"  # the end of the names of statistics of halves

#: A thing to compute, which is claimed and recorded shard by shard.
Subject = Mask | Statistic
