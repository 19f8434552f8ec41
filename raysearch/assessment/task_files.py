"""The files of lm-eval's tasks: those of the user, ready ones for local data, or lm-eval's with data of the hub.

Ready files contain absolute paths and lm-eval's names of tasks, so that the command line of lm-eval can use them:
``lm_eval --include_path <folder> --tasks hellaswag …``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from raysearch.assessment.spec import AssessSpec
from raysearch.errors import UserError
from raysearch.models.file_cache import sha256
from raysearch.text.sentences import did_you_mean

_TEMPLATES = Path(__file__).with_name("tasks")
_PLACEHOLDER = "DATA_DIR"
_NAME_LINE = re.compile(r"""^["']?(task|group)["']? *: *["']?([\w.:/+-]+)""", re.MULTILINE)  # of a task's file


@dataclass(frozen=True)
class TaskSource:
    """A task, and the place of its files.

    Args:
        name: The name of the task.
        folder: The folder of its task files; None for lm-eval's own.
        identity: All that its results depend on, besides the model and the options; JSON values.
    """

    name: str
    folder: Path | None
    identity: dict[str, Any]


def find_tasks(spec: AssessSpec, store: Path) -> list[TaskSource]:
    """Find each task of the specification, and write ready task files to ``tasks/…`` in the store.

    Args:
        spec: The names of the tasks, and the folders of data and task files.
        store: The folder of the store.

    Returns:
        The source of each task, in the order of the specification; empty if it names no task.

    Raises:
        UserError: A folder or a file does not exist, or no ready file reads local data for a task.
    """
    if not spec.tasks:
        return []
    version = importlib.metadata.version("lm_eval")
    own_names = [] if spec.task_dir is None else known_tasks(spec.task_dir)
    digest = _digest_of_folder(spec.task_dir) if spec.task_dir is not None and {*own_names} & {*spec.tasks} else ""
    sources = []
    for name in spec.tasks:
        identity: dict[str, Any] = {"task": name, "lm_eval": version}
        folder = None
        if spec.task_dir is not None and name in own_names:
            folder = spec.task_dir
            identity["files"] = digest
        elif spec.data_dir is None:
            identity["source"] = "lm-eval"
        else:
            folder, identity["files"] = _ready(name, spec.data_dir, spec, own_names, store)
        sources.append(TaskSource(name, folder, identity))
    return sources


def check_names(sources: Sequence[TaskSource]) -> None:
    """Check the names of the tasks that lm-eval is to define.

    Raises:
        UserError: lm-eval does not have a name, or it is a tag that stands for several tasks.
    """
    for name in [source.name for source in sources if source.folder is None]:
        if name in own_files():
            continue
        manager = task_manager(None, name) if _is_mentioned(name) else None  # reading all tasks takes ten seconds
        if manager is None or name not in manager.all_tasks:
            raise UserError(f"assess.tasks has {name}, which lm-eval does not know; {_nearest(name, own_files())}")
        if name in manager.all_tags:
            raise stands_for_several(name, manager.task_index[name].tags)


def stands_for_several(name: str, tasks: Iterable[str]) -> UserError:
    """Return the error for a name that stands for several tasks and has no number itself.

    Args:
        name: The name.
        tasks: The names of its tasks.

    Returns:
        The error, which names the single tasks.
    """
    return UserError(f"assess.tasks has {name}, which stands for several tasks; name them: {', '.join(sorted(tasks))}")


def task_manager(folder: str | None, task: str) -> Any:
    """Return a task manager of lm-eval that has a task.

    Args:
        folder: A folder of task files; None for lm-eval's own.
        task: The name of the task.

    Returns:
        An ``lm_eval.tasks.TaskManager``.
    """
    from lm_eval.tasks import TaskManager

    if folder is not None:  # its files may change
        return TaskManager(include_path=folder, include_defaults=False)
    if task in own_files():
        manager = _manager_of_own(own_files()[task].parent)
        if task in manager.all_subtasks:  # the tasks of a group may be in other folders
            return manager
    return _manager_of_own(None)


@functools.cache
def _manager_of_own(part: Path | None) -> Any:
    """Return lm-eval's manager of its own tasks in a folder; None for all folders, which takes ten seconds to read."""
    from lm_eval.tasks import TaskManager

    return TaskManager() if part is None else TaskManager(include_path=str(part), include_defaults=False)


@functools.cache
def own_files() -> Mapping[str, Path]:
    """Return the files of lm-eval's own tasks and groups by name, found by a line of text, without reading YAML."""
    files: dict[str, Path] = {}
    for file in sorted(_own_folder().rglob("*.yaml"), key=Path.as_posix):  # in lm-eval's order: the first file counts
        names = dict(_NAME_LINE.findall(file.read_text("utf-8")))
        if name := names.get("group") or names.get("task"):
            files.setdefault(name, file)
    return files


def _is_mentioned(name: str) -> bool:
    """Return whether lm-eval's own files contain a name anywhere, as that of a tag or of a task in another form."""
    word = re.compile(rb"(?<!\w)%b(?!\w)" % re.escape(name.encode()))
    return any(word.search(file.read_bytes()) for file in _own_folder().rglob("*yaml"))


def _own_folder() -> Path:
    package = importlib.util.find_spec("lm_eval")
    assert package is not None and package.origin is not None, "it is a dependency"
    return Path(package.origin).with_name("tasks")


def known_tasks(folder: Path) -> list[str]:
    """Return the tasks that the files of a folder define, as lm-eval reads them.

    Raises:
        UserError: The folder does not exist, or defines no task.
    """
    if not folder.is_dir():
        raise UserError(f"assess.task_dir={folder} is not a folder; give one with lm-eval task files (.yaml)")
    names: list[str] = task_manager(str(folder), "").all_tasks
    if not names:
        raise UserError(
            f"assess.task_dir={folder} defines no task; write a .yaml with `task: name`, as lm-eval reads it"
        )
    return names


def ready_tasks() -> list[str]:
    """Return the names of the tasks that have a ready file."""
    return sorted(file.stem for file in _TEMPLATES.glob("*.yaml"))


def write_task_files(data_dir: Path, store: Path) -> Path:
    """Write a task file for each set of local data that exists.

    Args:
        data_dir: The folder of the data.
        store: The folder of the store.

    Returns:
        The folder of the task files, for ``--include_path``.
    """
    data_dir = data_dir.resolve()
    available = [name for name in ready_tasks() if all(file.is_file() for file in _data_files(name, data_dir))]
    texts = {name: _filled_in(name, data_dir) for name in available}
    digest = hashlib.sha256("".join(texts.values()).encode()).hexdigest()[:8]
    folder = store.resolve() / "tasks" / f"{data_dir.name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock", fallback_to_soft=False):
        for name, text in texts.items():
            file = folder / f"{name}.yaml"
            if not file.is_file() or file.read_bytes() != text.encode():  # a killed command may have written a part
                file.write_text(text, encoding="utf-8")
    return folder


def _ready(
    name: str, data_dir: Path, spec: AssessSpec, own_names: Sequence[str], store: Path
) -> tuple[Path, dict[str, str]]:
    """Return the folder of a ready task, and the digests of its task and data files."""
    if not data_dir.is_dir():
        raise UserError(
            f"assess.data_dir={data_dir} is not a folder; give one laid out like hellaswag/validation.jsonl"
        )
    ready = ready_tasks()
    if name not in ready:
        raise UserError(
            f"assess.tasks has {name}, for which no file is ready to read assess.data_dir={data_dir}; "
            f"{_nearest(name, [*ready, *own_names])}; or give your own task files with assess.task_dir=…, or "
            "assess.data_dir=null for lm-eval's own and the hub"
        )
    data_files = _data_files(name, data_dir)
    for file in data_files:
        if not file.is_file():
            raise UserError(
                f"assess.data_dir={data_dir} holds no {file.relative_to(data_dir)} for {name} of assess.tasks; put it "
                "there, or leave the task out"
            )
    examples = _examples_file(data_files)
    if spec.shots and not examples.is_file():
        raise UserError(
            f"assess.shots={spec.shots} takes examples from {examples}, which is not there; put it there, or use "
            "assess.shots=null"
        )
    files = {"task": sha256(_TEMPLATES / f"{name}.yaml"), "data": sha256(data_files[0])}
    if examples.is_file():
        files["train"] = sha256(examples)
    return write_task_files(data_dir, store), files


def _filled_in(name: str, data_dir: Path) -> str:
    """Return the text of a task's file with the absolute path of its data, and with examples if they have a file."""
    text = (_TEMPLATES / f"{name}.yaml").read_text(encoding="utf-8")
    data_files = _data_files(name, data_dir)
    examples = _examples_file(data_files)
    if examples not in data_files and examples.is_file():
        line = f"    train: '{_PLACEHOLDER}/{examples.relative_to(data_dir)}'\n"
        text = text.replace("  data_files:\n", f"  data_files:\n{line}", 1) + "training_split: train\n"
    return text.replace(_PLACEHOLDER, str(data_dir).replace("'", "''"))


def _data_files(name: str, data_dir: Path) -> list[Path]:
    """Return the data files that a task's template names: its items, and its examples if they have a separate file."""
    template = (_TEMPLATES / f"{name}.yaml").read_text(encoding="utf-8")
    paths = [line.split("'")[1] for line in template.splitlines() if f"'{_PLACEHOLDER}/" in line]
    return [data_dir / path.removeprefix(f"{_PLACEHOLDER}/") for path in paths]


def _examples_file(data_files: Sequence[Path]) -> Path:
    """Return the file of a task's worked examples: the last one of its template, or that of the training split."""
    return data_files[-1] if len(data_files) > 1 else data_files[0].with_name("train.jsonl")


def _nearest(name: str, names: Collection[str]) -> str:
    """Return the remedy of `did_you_mean`, without a list of lm-eval's thousands of names."""
    remedy = did_you_mean(name, names)
    return remedy if len(names) < 50 or remedy.startswith("did you mean") else "list them with: lm_eval ls tasks"


def _digest_of_folder(folder: Path) -> dict[str, str]:
    """Return the digests of all files of a folder: task files, their helpers, and data."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(folder).as_posix(): sha256(file) for file in files}
