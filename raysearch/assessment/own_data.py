"""The part of a search's own data that it has not used, to assess and to train its mask on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.data import Data, Used
from raysearch.calibration.items import ItemOptions
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.overlap import SeenTexts
from raysearch.calibration.windows import Sampling, WindowOptions
from raysearch.errors import UserError
from raysearch.evaluation.prepared_data import ModelFiles, prepare_data
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.models.spec import ModelInfo

OWN = "own"  #: the name of that text among those of an assessment
_FEWEST = 4  # windows or items that say something of a model


@dataclass(frozen=True)
class OwnText:
    """The text that a search's own data give and its samples, or why they give none.

    Nothing at all where the preset's text is of these data.
    """

    data: Data | None = None
    samples: Calibration | None = None
    why_not: str | None = None

    def notes(self, spec: AssessSpec) -> tuple[str, ...]:
        """Return the sentence that tells which texts are taken instead, if any are."""
        if self.why_not is None:
            return ()
        instead = " and ".join(f"assess.texts.{name}" for name in spec.texts) or "no text"
        return (
            f"the search's own data cannot be assessed ({self.why_not}); the perplexity is of {instead}; for another "
            "text: assess.texts.mine='data=file data.path=… data.samples=all data.sampling=sequential'",
        )


def own_data(evaluation: EvaluationSpec) -> Data | None:
    """Return the data of a search; None where its calibrations are of several data."""
    first, *others = (one.data for one in evaluation.calibrations)
    same = all((one.rows, one.format) == (first.rows, first.format) for one in others)
    return first if same else None


def is_installed(data: Data) -> bool:
    """Return whether data are State of the Union addresses, which stand in for data of the user's own."""
    return data.rows.path is data.rows.name is None


def name_of(data: Data) -> str:
    """Return the file or the data set for people."""
    return Path(data.rows.path).name if data.rows.path is not None else data.rows.name or "sotu"


def own_text(spec: AssessSpec, searched: EvaluationSpec, info: ModelInfo, files: ModelFiles) -> OwnText:
    """Return a text of the search's own data without all samples that the search is on, for perplexity.

    That is every tenth row; where these hold too little, all rows.

    Args:
        spec: Says how long windows are, and how many there are at most.
        searched: The model and the calibrations of the search; several searches' have all of theirs.
        info: The model.
        files: What is known of its files.
    """
    data = own_data(searched)
    if spec.texts and all(is_installed(one.data) for one in searched.calibrations):
        return OwnText()  # every tenth address is there for assessments
    if data is None:
        return OwnText(why_not="it is on several data")
    used, why_not = _used(searched, info, files), ""
    for part in ("rest" if data.rows.part == "held_out" else "held_out", "all"):
        text = Data(replace(data.rows, part=part), data.format, _draw(data, spec, info), used)
        calibration = CalibrationSpec(f"assess.texts.{OWN}", PerplexityObjective(), text)
        try:
            evaluation = replace(searched, calibrations=[calibration], weighting=None)
            (drawn,) = prepare_data(evaluation, info, files).calibrations
        except UserError as error:
            why_not = why_not or str(error)
            continue
        if drawn.n_samples >= _FEWEST:
            return OwnText(text, drawn)
    return OwnText(why_not=why_not or f"{name_of(data)} holds too little that the search has not used")


def _draw(data: Data, spec: AssessSpec, info: ModelInfo) -> WindowOptions | ItemOptions:
    if isinstance(data.draw, ItemOptions):
        return replace(data.draw, samples="all", at_most=spec.limit, sampling="random", balance="none", score="answer")
    seq_len = min(spec.seq_len, info.max_positions or spec.seq_len)
    sampling: Sampling = "sequential" if spec.limit is None else "random"
    return WindowOptions("all", seq_len, sampling=sampling, bos=data.draw.bos, at_most=spec.limit)


def _used(searched: EvaluationSpec, info: ModelInfo, files: ModelFiles) -> Used:
    """Return the samples of a search."""
    texts = [one for one in searched.calibrations if isinstance(one.data.draw, WindowOptions)]
    items = [one.data.items() for one in searched.calibrations if isinstance(one.data.draw, ItemOptions)]
    drawn = prepare_data(replace(searched, calibrations=texts, weighting=None), info, files).calibrations
    samples = frozenset(located.sample for drawn_items in items for located in drawn_items.samples)
    return Used(SeenTexts(drawn, files.tokenizer), samples)
