# make demo   a DDP training with checkpoint and resume on this machine: no Slurm, no GPU, no data download
# make test   format, lint, types, words and tests; jobs on a real Slurm where root and the packages are there
# make proofs what make test leaves out: long trainings, a browser, and jobs on a second Slurm
# make test CHOSEN=  test and proofs in one run: before a release
# make test-fast  format, lint and what a change of the command breaks first, without Slurm and torch: two minutes
# make docs   the documentation as a site, in build/site: open build/site/index.html
# make page-tests   the tests of `sbatchgen page`: Node.js with npm, and Chromium
# make changelog   what the next release changes, from the files in changes/
# make release   a wheel, an sdist and sbatchgen.pyz in dist, each tried in an empty folder; the release note.
#                VERSION=0.3.0: of a new version, with a commit before and a tag after it
# make smoke-gpu   try the training package on the GPUs of this machine; a table for a report; 77 if there is no GPU
# make test-oldest   the tests of the training package on the oldest Python and torch that it is for: before a release

VENV ?= .venv
PYTHON ?= python3
# The versions that the tests have run with. Set the first to what your machine should have: make demo TORCH=torch
# A torchvision of another version would bring another torch with it. It brings numpy and Pillow. The demo needs none of
# them, but without numpy torch complains at each start.
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0

VENV_OLDEST ?= .venv-oldest
PYTHON_OLDEST ?= python3.10
TORCH_OLDEST ?= torch==2.2.2 torchvision==0.17.2 'numpy<2'

BIN := $(VENV)/bin
BIN_OLDEST := $(VENV_OLDEST)/bin
.PHONY: smoke-gpu demo docs test tests proofs test-fast test-oldest check lint types words forms compiled clean sid page-packages page-tests modules old-python changelog release

# Test files are shared out among so many processes, the longest first: more than cores, since jobs wait. Tests on
# another Slurm are a part of their own. `make test PYTEST_ADDOPTS=--update-durations` measures them again.
WORKERS ?= $(shell echo $$((3 * $$(nproc))))
unexport PYTHONDONTWRITEBYTECODE # tests start Python thousands of times, which would compile all again
# What `make check` reads for words that the project does not use.
PROSE = README.md CHANGELOG.md changes CONTRIBUTING.md docs sbatchgen training benchmarks examples release tests tools
PYTEST = $(BIN)/python tests/light_finder.py && sh tests/tmp_in_memory.sh $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "error: $(PYTHON) is older than 3.10; name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[plan]' '$(TORCH)' numpy
	@touch $@

# ft_launcher without the pynvml that it names, of which torch warns at each start, and where there is one for the machine.
$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' '$(TORCH)' '$(TORCHVISION)'
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps defusedxml nvidia-resiliency-ext==0.4.1
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(BIN_OLDEST)/python:
	@$(PYTHON_OLDEST) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))' || \
	    { echo "error: $(PYTHON_OLDEST) is not Python 3.10; fix: name one: make test-oldest PYTHON_OLDEST=path/to/python3.10"; exit 1; }
	$(PYTHON_OLDEST) -m venv $(VENV_OLDEST)

$(VENV_OLDEST)/.test: pyproject.toml Makefile | $(BIN_OLDEST)/python
	$(BIN_OLDEST)/python -m pip install --quiet --disable-pip-version-check --editable '.[plot]' pytest pytest-xdist tensorboard $(TORCH_OLDEST)
	@touch $@

demo: $(VENV)/.demo
	PATH="$(abspath $(BIN)):$$PATH" bash examples/demo.sh demo

# Its own Python, which has a torch for the GPUs: make smoke-gpu PYTHON=python3
smoke-gpu:
	$(PYTHON) benchmarks/smoke_gpu.py

# The page of all bundled profiles is a part of the site, where npm is installed.
PAGE = build/page/public/job
docs: $(VENV)/.docs
	@bash tests/page/packages.sh build/page
	@! command -v npm >/dev/null || $(BIN)/sbatchgen page --to $(PAGE) --packages build/page/page/node_modules \
	    $(patsubst profiles/%.yaml,--profile %,profiles/msu.yaml $(filter-out profiles/msu.yaml,$(wildcard profiles/*.yaml)))
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --conf-dir docs . build/site
	@echo 'The site is in build/site: open build/site/index.html'

check: lint types words forms

# What a change breaks easily: the length of a function, the form of a fragment of the changelog.
forms: $(VENV)/.test
	$(BIN)/python -m pytest -q -p no:xdist tests/test_changes.py tests/test_sizes.py tests/test_quoted_names.py

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy

words: $(VENV)/.test
	$(BIN)/python tests/words.py $(PROSE)

# Compiled by one process, which takes 10 s after a change: each process that runs tests would take them.
compiled: $(VENV)/.compiled

$(VENV)/.compiled: $(VENV)/.test $(shell find sbatchgen training tests -name '*.py')
	$(BIN)/python -m compileall -q sbatchgen training
	$(BIN)/python -m pytest --collect-only >/dev/null || true # make test tells of errors
	@touch $@

# A newer Slurm, whose sbatch the tests then ask too; as root.
sid:
	bash tests/cluster/sid.sh build/sid

# Two systems of modules, for jobs that load some; needs no root.
modules:
	bash tests/cluster/modules.sh build/modules

# What the page is made of and tested with; needs npm.
page-packages:
	bash tests/page/packages.sh build/page

page-tests: page-packages $(VENV)/.test
	$(BIN)/python -m pytest tests/page

# The Python of Debian 11, for the programs that start trainers on old systems; needs no root.
old-python:
	bash tests/training/old_python.sh build/python3.9

# mypy takes a minute of one core, beside tests of which many wait. With `CHOSEN=`, proofs are in the same run.
test: CHOSEN = -m 'not proof'
test: $(VENV)/.test
	$(MAKE) --jobs --output-sync lint words compiled
	$(MAKE) --jobs types tests CHOSEN="$(CHOSEN)"

tests: $(VENV)/.test
	$(PYTEST) $(CHOSEN)

proofs: $(VENV)/.test
	$(PYTEST) -m proof

test-fast: lint
	$(PYTEST) -m 'not slow and not proof and not torch'

changelog: $(VENV)/.test
	@$(BIN)/python -m towncrier build --draft --version Unreleased

release: $(VENV)/.test
	$(if $(VERSION),$(BIN)/python -m release.version $(VERSION))
	$(BIN)/python -m release.build
	$(if $(VERSION),git tag v$(VERSION))

test-oldest: $(VENV_OLDEST)/.test
	$(BIN_OLDEST)/python -m pytest --numprocesses auto --dist loadfile tests/training tests/plan/test_memory.py

clean:
	rm -rf $(VENV) $(VENV_OLDEST) demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
