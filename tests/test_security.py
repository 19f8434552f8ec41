"""What is never run, never opened and never left: no foreign code, no open door, no path out of a folder."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

from raysearch.assessment.spec import AssessSpec
from raysearch.configuration import compose as config
from raysearch.core.paths import as_name
from raysearch.errors import UserError
from raysearch.models.loading import load_config
from raysearch.models.source import locate
from raysearch.models.spec import ModelSpec
from raysearch.studies.spec import StudyOptions
from raysearch.tracking.mlflow.ui import serve_ui
from tests.sentences import Sentences
from tests.test_structure import FILES, ROOT

#: Calls that run what they read.
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "pickle.load", "pickle.loads",
    "pickle.Unpickler", "joblib.load", "cloudpickle.load", "cloudpickle.loads", "dill.load", "dill.loads",
    "marshal.loads", "shelve.open", "pandas.read_pickle", "pd.read_pickle", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load",
}  # fmt: skip
#: What imports a library that unpickles, and why it may.
ALLOWED = {
    "models/shared_weights.py": "it unpickles only what the driver itself pickled, which Ray brought to its replicas",
    "core/machine.py": "joblib counts cores for it; to call its load is forbidden everywhere",
}
#: What trusts the code that raysearch itself has written into a checkpoint, which then has no other code
#: (tests/checkpoints/test_half_checkpoints.py).
OWN_CODE = ("checkpoints/config_file.py", "models/running_proof.py", "recovery/planned_recovery.py")
#: What runs generated code, in a process that it has shut off before (tests/generation/test_sandbox.py).
SANDBOX = "generation/sandbox_child.py"


def test_nobody_is_told_to_install_the_program_that_has_our_name_on_the_package_index() -> None:
    folders = ("raysearch", "conf", "docs", "clusters", "docker", "tests", "examples", "experiments", ".ci")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*")] + [*ROOT.glob("*.*"), ROOT / "Makefile"]
    texts = [file for file in files if file.is_file() and file.suffix not in (".pyc", ".png")]
    assert {"build.py", "evaluation.yaml", "aws.yaml", "Dockerfile", "README.md", "Makefile"} <= {
        file.name for file in texts
    }
    other = re.compile(rb"raysearch\[[a-z]|pip3? install [^\n`]*['\" ]raysearch(?![-\w./:])")
    assert not [str(file.relative_to(ROOT)) for file in texts if other.search(file.read_bytes())]


def test_nothing_foreign_is_run() -> None:
    wrong = []
    for file in FILES:
        place = file.relative_to(ROOT / "raysearch").as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and place != SANDBOX:
                wrong += [
                    f"{place}:{node.lineno} {risk}"
                    for risk in risks(node)
                    if place not in OWN_CODE or risk != "trusts code unasked"
                ]
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [name.name for name in node.names] + [getattr(node, "module", None) or ""]
                pickles = {"pickle", "dill", "joblib", "cloudpickle", "marshal", "shelve"} & set(names)
                wrong += [f"{place}:{node.lineno} imports {name}" for name in pickles if place not in ALLOWED]
    assert not wrong, "\n".join(wrong)
    assert not (gone := [place for place in ALLOWED if not (ROOT / "raysearch" / place).is_file()]), gone


def risks(call: ast.Call) -> Iterator[str]:
    """What is wrong with a call."""
    name = ast.unparse(call.func)
    if name in FORBIDDEN:
        yield f"calls {name}"
    arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    for risky in ("shell", "allow_pickle", "weights_only"):
        if risky in arguments:
            yield f"has {risky}={arguments[risky]}"
    if not arguments.get("trust_remote_code", "trust_remote_code").endswith("trust_remote_code"):  # a value of the user
        yield "trusts code unasked"


def test_no_model_brings_its_own_code_unasked() -> None:
    names = {file.stem for file in (ROOT / "conf" / "model").glob("*.yaml")} - {"custom"} | {"owner/name"}
    assert len(names) > 1
    assert not [name for name in names if config.compose("evaluation", [f"model={name}"])["model"]["trust_remote_code"]]
    assert ModelSpec("a", "b").trust_remote_code is False


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path, sentences: Sentences) -> None:
    auto = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": auto}))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    _weights(tmp_path / "model.safetensors")
    with sentences.refused(UserError):
        load_config(locate(ModelSpec("m", str(tmp_path))))
    assert not (tmp_path / "ran").exists()


def test_the_ui_listens_on_this_machine_alone() -> None:
    assert inspect.signature(serve_ui).parameters["host"].default == "127.0.0.1"
    from raysearch.cli.recorded_searches import ui

    assert inspect.signature(ui).parameters["host"].default == "127.0.0.1"


def test_a_yaml_file_imports_nothing_of_others(sentences: Sentences) -> None:
    from raysearch.configuration.parts import build_searcher

    for kind in ("os", "os.path", "raysearch.configuration.compose", "../config", "base", "toolbox", "toolbox.ising"):
        with sentences.refused(UserError):
            build_searcher({"type": kind})


def test_a_name_leads_nowhere_else(sentences: Sentences) -> None:
    for name in ("..", ".", "", " ", "a/b", "../a", "/a", "a\\b", "\0", "x" * 101):
        with sentences.refused(UserError):
            as_name("x", name)
        with sentences.refused(UserError):
            AssessSpec(texts={name: None})  # type: ignore[dict-item]
        with sentences.refused(UserError):
            StudyOptions(name)


def test_an_index_leads_nowhere_else(tmp_path: Path, sentences: Sentences) -> None:
    (tmp_path / "config.json").write_text("{}")
    _weights(tmp_path / "y.safetensors")
    for shard in ("../x.safetensors", "/x.safetensors", "sub/x.safetensors", "x.bin"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
        with sentences.refused(UserError):
            locate(ModelSpec("m", str(tmp_path)))


def test_a_revision_leads_nowhere_else(sentences: Sentences) -> None:
    for revision in ("..", "../../x", "a/../b", "/etc"):
        with sentences.refused(UserError):
            load_config(locate(ModelSpec("m", "a/b", revision=revision)))


def test_an_installed_package_is_named_by_a_word(sentences: Sentences) -> None:
    for package in ("..", "../x", "os.path", "a b", ""):
        with sentences.refused(UserError):
            locate(ModelSpec("m", f"installed:{package}"))


def test_no_word_reaches_the_environment(sentences: Sentences) -> None:
    for word in ("store=${oc.env:HOME}", "data.path=${oc.env:HOME}", "store=a${now:}"):
        with sentences.refused(UserError):
            config.compose("search", [word])


def _weights(file: Path) -> None:
    """A safetensors file with one small tensor."""
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(1, dtype=np.float32)}, file)
