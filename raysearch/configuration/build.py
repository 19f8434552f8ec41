"""From words or a resolved configuration to the specifications that rooms work by.

Every section's keys are the fields of one class of ours, see `raysearch.configuration.parts`. All that is wrong with a
command is reported at once, as one `UserError`. Words and `config_dir` are those of `compose`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

from pydantic import NonNegativeInt

from raysearch.assessment.spec import AssessSpec, SearchSpeedOptions
from raysearch.calibration.data import Data
from raysearch.calibration.objectives.weighted import WeightedObjective
from raysearch.cluster.options import ClusterOptions
from raysearch.configuration.compose import after, as_section, compose, compose_calibration, composed, words_of
from raysearch.configuration.merge import section_of
from raysearch.configuration.parts import Part, build_data, build_objective, build_searcher, check_names, construct
from raysearch.core.formatting import as_typed
from raysearch.core.mask import Mask
from raysearch.core.options import checked
from raysearch.core.paths import PathLike, as_path
from raysearch.core.problem import AUTO, sizes_of
from raysearch.errors import UserError, hidden_keys, redact, redacted, together, within
from raysearch.evaluation.screening import Screening
from raysearch.evaluation.spec import CalibrationSpec, EvaluationSpec
from raysearch.models.file_cache import user_cache
from raysearch.models.source import with_dtype
from raysearch.models.spec import ModelSpec, label_of
from raysearch.recovery.refine import RecoveryRefiner
from raysearch.recovery.spec import RecoverSpec, RecoveryOptions
from raysearch.searching.recommendation import Budget
from raysearch.searching.spec import SearchSpec
from raysearch.studies.grid import Combination, combinations_of
from raysearch.studies.spec import Cell, StudyOptions, StudySpec, drawn_once, one_seed_each
from raysearch.tracking.options import TrackingOptions

OWN = "own"  #: the choice of data that stands for those of a search on record
_SEEDS = 1_000_000  # below this, a number of each set of samples of a study is added to the seed
#: The top-level keys of the configuration of an evaluation, and those of a search.
_OF_EVALUATIONS = {"model", "data", "objective", "cluster", "store", "ledger", "seed", "choices"}
_OF_SEARCHES = {"searcher", "screening", "refine", "tracking", "remove", "protect", "budget", "speed", *_OF_EVALUATIONS}
#: The keys of a study that say which searches it has, and how their masks are recovered.
_OF_GRIDS = {"grid", "include", "exclude", "recover", "recover_with"}
#: The sections that came after the ledger's format 7; a search on record without them is as their defaults say.
_ADDED_SECTIONS = {"budget", "speed", "refine"}


def search_spec(words: Sequence[str], config_dir: PathLike | None = None) -> SearchSpec:
    """Build a search from the words of ``raysearch search``."""
    return tracked_search(words, config_dir)[0]


def tracked_search(words: Sequence[str], config_dir: PathLike | None = None) -> tuple[SearchSpec, TrackingOptions]:
    """Build a search, and where it is recorded for people to look at."""
    spec, tracking = composed("search", words, config_dir).read(_search_spec, tracking_options)
    return spec, tracking


def recorded_search(config: Mapping[str, Any], *, goes_on: bool = False) -> SearchSpec:
    """Build a search from its configuration on record, unless another version of raysearch recorded it.

    What recovers its masks is built only where it `goes_on`, since it needs other libraries.
    """
    if added := _ADDED_SECTIONS - config.keys():
        config = {**config, **{name: value for name, value in compose("search", []).items() if name in added}}
    if lacking := sorted(_OF_SEARCHES - config.keys()):
        raise UserError(
            f"the search is on record without {' and '.join(lacking)}, as another version of raysearch wrote it; type "
            "the whole search command again, which goes on from its evaluations"
        )
    for key in hidden_keys({"model": {**config["model"], "name": ""}}):
        raise UserError(
            f"{key} is on record without its secret, so the model is not found; search again by a path that holds none"
        )
    return _search_spec(config, refines=goes_on)


def _search_spec(config: Mapping[str, Any], *, refines: bool = True) -> SearchSpec:
    parts = together(
        evaluation=lambda: _evaluation_spec(config, _OF_SEARCHES),
        screening=lambda: _build(Screening, config, "screening"),
        searcher=lambda: build_searcher(_section(config, "searcher")),
        remove=lambda: _remove(_given(config, "remove")),
        protect=lambda: checked(list[int], "protect", _given(config, "protect")),
        budget=lambda: _budget(config),
        refiner=lambda: _refiner(config) if refines else None,
    )
    if parts["refiner"] is not None:
        parts["refiner"] = parts["refiner"].on_own_data(parts["evaluation"], redacted(config))
    screening, name = parts.pop("screening"), config["choices"]["searcher"]
    if screening.stages:
        parts["evaluation"] = dataclasses.replace(parts["evaluation"], screening=screening)
    # The dtype that this machine takes for `auto` is kept, so that the search goes on in it on any other.
    model = {**config["model"], "dtype": parts["evaluation"].model.dtype}
    recorded = redacted({**config, "model": model})
    return SearchSpec(searcher_name=redact(name), seed=config["seed"], config=recorded, **parts)


def score_spec(words: Sequence[str], config_dir: PathLike | None = None) -> tuple[EvaluationSpec, list[Mask]]:
    """Build how to evaluate masks, and these, from the words of ``raysearch score``."""
    evaluation, masks = composed("score", words, config_dir).read(
        partial(_evaluation_spec, keys={"masks", *_OF_EVALUATIONS}), _masks
    )
    return evaluation, masks


def evaluation_spec(words: Sequence[str], also: Sequence[str], config_dir: PathLike | None = None) -> EvaluationSpec:
    """Build an evaluation on the calibration of the words and, beside it, on others: each the words that differ."""
    found = composed("evaluation", words, config_dir)

    def beside(one: str, _: Mapping[str, Any]) -> CalibrationSpec:
        return _calibration_spec(compose_calibration(one, found.words, config_dir))

    def whole(config: Mapping[str, Any]) -> EvaluationSpec:
        spec = _evaluation_spec(config)
        if spec.weighting is not None:
            raise UserError(
                "objective=weighted is several calibrations in one; lay them side by side with --also instead"
            )
        return spec

    spec, *others = found.read(whole, *(partial(beside, one) for one in also))
    return dataclasses.replace(spec, calibrations=[*spec.calibrations, *others])


def study_spec(words: Sequence[str], config_dir: PathLike | None = None) -> StudySpec:
    """Build a study and all of its searches from the words of ``raysearch study``."""
    return tracked_study(words, config_dir)[0]


def tracked_study(words: Sequence[str], config_dir: PathLike | None = None) -> tuple[StudySpec, TrackingOptions]:
    """Build a study, and where it is recorded for people to look at."""
    found = composed("study", words, config_dir)
    config, attempt = found.config, found.mistakes.attempt
    options, tracking = attempt(_study_options, config), attempt(tracking_options, config)
    assesses = config["choices"]["assess"] != "none" or any(word.startswith("assess.") for word in words)
    assess = attempt(assess_spec, config) if assesses else None
    ways, combinations = attempt(_ways, config) or {}, attempt(_combinations, config) or []
    recoveries, cells = {}, []
    for way, its in ways.items():
        with found.mistakes:
            recoveries[way] = _recovery(way, its, config, assess, config_dir)
    for one in combinations:
        with found.mistakes:
            cells.append(_cell(one, found.words, config, tracking, config_dir))
    if options is not None and len(cells) == len(combinations) > 0:
        attempt(options.check_contrasts, (cell.searcher for cell in cells))
    found.mistakes.tell()
    assert options is not None and tracking is not None, "else they would be among the mistakes"
    typed = [*([] if config_dir is None else ["--config-dir", str(config_dir)]), *words]
    kept, notes = one_seed_each(_with_short_names(cells))
    notes += drawn_once(kept)
    record = redacted(config), [*map(redact, typed)]
    return StudySpec(options, kept, assess, _store(config), *record, notes, recoveries), tracking


def _study_options(config: Mapping[str, Any]) -> StudyOptions:
    own = {key: value for key, value in _section(config, "study").items() if key not in _OF_GRIDS}
    return construct(StudyOptions, "study", redacted(own))


def _combinations(config: Mapping[str, Any]) -> list[Combination]:
    section = _section(config, "study")
    rules = {key: checked(list[dict[str, Any]], f"study.{key}", section.get(key, [])) for key in ("include", "exclude")}
    return combinations_of(checked(dict[str, Any], "study.grid", section.get("grid", {})), **rules)


def _ways(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the words of each way of recovering a study's masks."""
    section = _section(config, "study")
    shared = checked(str, "study.recover_with", section.get("recover_with", ""))
    own = checked(dict[str, str | None], "study.recover", section.get("recover", {}))
    return {way: f"{shared} {words}" for way, words in own.items() if words is not None}


def _recovery(
    way: str, words: str, study: Mapping[str, Any], assess: AssessSpec | None, config_dir: PathLike | None
) -> RecoverSpec:
    """Build a way of recovering a study's masks, which are assessed as the study's masks are, if those are."""
    whole = after("cluster", study, words_of(words, f"study.recover.{way}="))
    spec = within(f"study.recover.{way}", lambda: recover_spec(compose("recover", whole, config_dir)))
    return spec if assess is None else dataclasses.replace(spec, assess=assess)


def _cell(
    combination: Combination,
    words: Sequence[str],
    study: Mapping[str, Any],
    tracking: TrackingOptions | None,
    config_dir: PathLike | None,
) -> Cell:
    """Build a search of a study.

    Where an axis varies the searcher's seed, samples stay the same. On other samples a searcher draws other random
    numbers, or its luck would be the same on all; unless the words of another axis have a seed.
    """
    of_all = [*_chosen_by_studies(), *(word for word in words if section_of(word) not in ("study", "assess"))]
    own = [*of_all, *combination.words]
    given = dict(word.split("=", 1) for word in own)
    if "seed" in combination.labels and "data.seed" not in given:
        own.append(f"data.seed={_given(study, 'seed')}")
    search, own_tracking = tracked_search(own, config_dir)
    fixed = "seed" not in combination.labels and any(word.startswith("seed=") for word in combination.words)
    if search.searcher.stochastic and not fixed:
        labels = [combination.label(of) or "" for of in ("model", "calibration", "draw")]
        seed = search.seed + crc32("\n".join(labels).encode()) % _SEEDS * any(labels)  # not by a word: data take theirs
        search = dataclasses.replace(search, seed=seed, config={**search.config, "seed": seed})
    if search.budget is not None:
        raise UserError("remove=auto is of one search, not of a study's; give study.grid.remove a number or a range")
    if search.refiner is not None:
        raise UserError(
            "refine=recover is of one search, not of a study's; study.recover trains each mask that a study finds"
        )
    if tracking not in (None, own_tracking):
        raise UserError(
            "study.grid has searches recorded in different places, and a study has one; take store, ledger and "
            "tracking out of its axes, and say them beside it"
        )
    calibrations = " and ".join(one.name for one in search.evaluation.calibrations)
    return Cell(
        model=redact(combination.label("model") or search.evaluation.model.name),
        calibration=redact(combination.label("calibration") or calibrations),
        searcher=redact(combination.label("searcher") or search.searcher_name),
        search=search,
        draw=redact(combination.label("draw") or ""),
    )


def _with_short_names(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with their models called without folders, unless two would be called alike."""
    labels = {cell.model: label_of(cell.model, cell.search.evaluation.model.path) for cell in cells}
    if len({*labels.values()}) < len(labels):
        return [*cells]
    return [dataclasses.replace(cell, model=labels[cell.model]) for cell in cells]


@cache
def _chosen_by_studies() -> list[str]:
    """Return the words for what ``conf/study.yaml`` chooses otherwise than ``conf/search.yaml``."""
    of_search, of_study = compose("search", [])["choices"], compose("study", [])["choices"]
    return [f"{group}={name}" for group, name in of_study.items() if of_search.get(group, name) != name]


def assess_spec(config: Mapping[str, Any]) -> AssessSpec:
    """Build what to assess masks by, which is something, from the section ``assess`` of a configuration."""
    spec = _assess_spec(config)
    if not spec.measures:
        raise UserError("assess asks for nothing; name texts or tasks, or set assess.speed.enabled=true")
    return spec


def _assess_spec(config: Mapping[str, Any]) -> AssessSpec:
    section = _section(config, "assess")
    texts, tasks = (section.pop(key, {}) for key in ("texts", "generation"))
    parts = together(
        partial(_check_seed, config),
        spec=lambda: construct(AssessSpec, "assess", section, texts={}, generation={}),
        texts=lambda: _texts("texts", texts),
        generation=lambda: _texts("generation", tasks),
    )
    return dataclasses.replace(parts.pop("spec"), **parts)


def _texts(key: str, given: Mapping[str, Mapping[str, Any]]) -> dict[str, Data]:
    """Build the data of texts or tasks, which may be of an evaluation split."""

    def text(name: str, data: Mapping[str, Any]) -> Data:
        return within(f"assess.{key}.{name}", build_data, {**data, "allow_evaluation_split": True})

    return together(**{redact(name): partial(text, name, data) for name, data in given.items()})


def recover_spec(config: Mapping[str, Any]) -> RecoverSpec:
    """Build a recovery from a configuration composed from ``conf/recover.yaml``.

    Its models are assessed by what the section ``assess`` asks for, which may be nothing.
    """
    is_own = config["choices"]["data"] == OWN
    recovery = dict(_section(config, "recovery"))
    responses = recovery.pop("responses", None)
    if missing := [name for name in ("peft", "trl") if find_spec(name) is None]:
        raise UserError(f"recover needs {' and '.join(missing)}; install with: pip install {' '.join(missing)}")
    parts = together(
        data=lambda: build_data(_section(config, "data")),
        options=lambda: construct(RecoveryOptions, "recovery", {**recovery, "responses": responses or "self"}),
        assess=lambda: _assess_spec(config) if "assess" in config else AssessSpec(),
        cluster=lambda: _build(ClusterOptions, config, "cluster"),
    )
    if parts["options"].method == "qlora" and find_spec("bitsandbytes") is None:
        raise UserError("recovery.method=qlora needs bitsandbytes; install it with: pip install bitsandbytes")
    if is_own:
        parts["own"] = dataclasses.replace(parts["options"], responses=responses or "data")
    choices = {"choices.data": "sotu" if is_own else config["choices"]["data"]}
    choices["choices.recovery"] = config["choices"]["recovery"]
    sections = {"data": config["data"], "recovery": {**config["recovery"], "responses": parts["options"].responses}}
    keys = {f"{group}.{key}": value for group, section in sections.items() for key, value in section.items()}
    return RecoverSpec(**parts, settings=redacted({**choices, **keys}))


def tracking_options(config: Mapping[str, Any]) -> TrackingOptions:
    """Build where searches are recorded for people to look at, from the configuration of a search or a study."""
    parts = together(folder=lambda: _store(config), ledger=lambda: _ledger(config))
    return construct(TrackingOptions, "tracking", _section(config, "tracking", shown="experiment"), **parts)


def speed_options(config: Mapping[str, Any]) -> SearchSpeedOptions:
    """Build how the speeds of a search by budget are measured."""
    return _build(SearchSpeedOptions, config, "speed")


def _evaluation_spec(config: Mapping[str, Any], keys: set[str] = _OF_EVALUATIONS) -> EvaluationSpec:
    """Build an evaluation from a configuration that may have these top-level keys."""
    parts = together(
        partial(check_names, "", config, keys),
        partial(_check_seed, config),
        model=lambda: _model(config),
        calibrations=lambda: _calibrations(config),
        cluster=lambda: _build(ClusterOptions, config, "cluster"),
        ledger=lambda: _ledger(config),
    )
    calibrations, weighting = parts.pop("calibrations")
    model = with_dtype(parts["cluster"].place(parts.pop("model")))
    return EvaluationSpec(model, calibrations, weighting=weighting, **parts)


def _model(config: Mapping[str, Any]) -> ModelSpec:
    """Build the model; with ``model.cache`` a GGUF file is kept in the user's cache."""
    section = _section(config, "model", shown="name")
    cache = user_cache() if checked(bool, "model.cache", section.pop("cache", True)) else None
    return construct(ModelSpec, "model", section, cache=cache)


def _calibrations(config: Mapping[str, Any]) -> tuple[list[CalibrationSpec], WeightedObjective | None]:
    """Build the calibration; or those that a weighted objective consists of, and how they are weighed."""
    objective = _section(config, "objective")
    parts = objective.get("parts")
    if parts is None:
        return [_calibration_spec(config)], None
    steps = [partial(within, "objective.parts", _calibration_spec, part) for part in parts]
    built = together(
        weighting=lambda: _weighting(objective), **{str(number): step for number, step in enumerate(steps)}
    )
    return [*built.values()][1:], built["weighting"]


def _calibration_spec(config: Mapping[str, Any]) -> CalibrationSpec:
    if config["choices"]["data"] == OWN:
        raise UserError(f"data={OWN} is a search's own data, for raysearch recover alone; name data such as data=file")
    parts = together(
        objective=lambda: build_objective(_section(config, "objective")),
        data=lambda: build_data(_section(config, "data")),
    )
    choices = config["choices"]
    name = f"{choices['objective']} on {_data_name(choices['data'], config['data'])}"
    return CalibrationSpec(redact(name), **parts)


def _data_name(choice: str, data: Mapping[str, Any]) -> str:
    """Return the choice of data, and which rows where these may be any."""
    if data.get("path") and not data.get("name"):
        return f"{choice} {Path(data['path']).name}"
    return f"{choice} {data.get('name')}" if choice == "hub" else choice


def _weighting(objective: Mapping[str, Any]) -> WeightedObjective:
    weights = tuple(checked(float, "objective.parts: weight", part["weight"]) for part in objective["parts"])
    # what stands under `shared` has been taken in by the words of the parts
    own = {key: value for key, value in objective.items() if key not in ("type", "parts", "shared")}
    return construct(WeightedObjective, "objective", own, weights=weights)


def _remove(value: Any) -> int | str:
    remove: int | str = value if type(value) is int else as_typed(value)
    if remove != AUTO:
        sizes_of(remove)
    return remove


def _budget(config: Mapping[str, Any]) -> Budget | None:
    """Return the budget of a search; None where no part of it has a value and ``remove`` asks for none."""
    speed, given = speed_options(config), _section(config, "budget")
    words = [f"budget.{part}={as_typed(value)}" for part, value in given.items() if value is not None]
    budget = Budget.parse(words) if words or _given(config, "remove") == AUTO else None
    if budget is not None and budget.gains and not speed.enabled:
        asked = " ".join(budget.word(part) for part in budget.gains)
        raise UserError(f"{asked} needs speeds, which speed.enabled=false does not measure; leave that out")
    return budget


def _refiner(config: Mapping[str, Any]) -> RecoveryRefiner | None:
    """Return what recovers the best masks of a search; None where none is to be recovered."""
    section = _section(config, "refine")
    recovery = section.pop("recover_with", None)
    if recovery is None:
        return None
    spec = within("refine.recover_with", recover_spec, {**recovery, "cluster": config["cluster"]})
    return construct(RecoveryRefiner, "refine", section, recover_with=spec)


def _masks(config: Mapping[str, Any]) -> list[Mask]:
    masks = [Mask.of(*layers) for layers in checked(list[list[int]], "masks", _given(config, "masks"))]
    if not masks:
        raise UserError("masks=[] names no mask; give a list of lists, such as masks=[[3],[3,5],[]]")
    return masks


def _ledger(config: Mapping[str, Any]) -> Path:
    ledger = _given(config, "ledger")
    return _store(config) / "ledger.db" if ledger is None else as_path("ledger", checked(str, "ledger", ledger))


def _store(config: Mapping[str, Any]) -> Path:
    return as_path("store", checked(str, "store", _given(config, "store")))


def _check_seed(config: Mapping[str, Any]) -> None:
    checked(NonNegativeInt, "seed", _given(config, "seed"))


def _build(part: type[Part], config: Mapping[str, Any], name: str) -> Part:
    """Build what a section describes as a whole."""
    return construct(part, name, _section(config, name))


def _section(config: Mapping[str, Any], name: str, shown: str = "") -> dict[str, Any]:
    """Return a section's keys and values, without secrets under the key that is `shown` to others."""
    section = as_section(name, _given(config, name))
    return {**section, **redacted({key: value for key, value in section.items() if key == shown})}


def _given(config: Mapping[str, Any], key: str) -> Any:
    """Return a top-level value; one that is left out is so for a mistake that is reported already."""
    if key not in config:
        raise UserError()
    return config[key]
