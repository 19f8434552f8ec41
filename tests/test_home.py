"""Tests neither see nor change what the developer's own work has left in this machine's home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Prints where each library keeps files, in a process that asks as a command does.
FOLDERS = """
from pathlib import Path
import matplotlib, ray._common.utils as ray_utils
from datasets.config import HF_DATASETS_CACHE
from huggingface_hub.constants import HF_HOME, HF_TOKEN_PATH
from transformers.dynamic_module_utils import HF_MODULES_CACHE
print(HF_HOME, HF_TOKEN_PATH, HF_MODULES_CACHE, HF_DATASETS_CACHE, matplotlib.get_cachedir(),
      ray_utils.get_default_ray_temp_dir(), Path.home(), sep="\\n")
"""


def test_every_library_keeps_its_files_in_the_home_of_the_tests() -> None:
    done = subprocess.run([sys.executable, "-c", FOLDERS], capture_output=True, text=True, check=True, timeout=120)
    folders = done.stdout.splitlines()
    assert len(folders) == 7
    assert not [folder for folder in folders if not Path(folder).is_relative_to(os.environ["RAYSEARCH_TEST_HOME"])]


def test_no_address_of_a_server_or_cluster_comes_along() -> None:
    assert not os.environ.keys() & {"RAY_ADDRESS", "MLFLOW_TRACKING_URI", "HF_TOKEN", "HF_ENDPOINT"}
