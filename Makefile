# Everything a fresh machine needs: make demo, quick, test, slurm, matrix, bench.

PYTHON ?= python3
VENV ?= .venv
RUN = PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
PIP = $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
# A path to this folder; what setuptools would put there otherwise doubles Python's start-up time.
EDITABLE = --config-settings editable_mode=compat -e
# TensorFlow for machines without NVIDIA's GPUs is half as large; there is none for other processors.
# Where one is installed already it stays: both are the same files.
GPU = $(shell command -v nvidia-smi || ls -d /proc/driver/nvidia 2>/dev/null)
THERE = $(wildcard $(VENV)/lib/python3*/site-packages/tensorflow-[0-9]*)
TENSORFLOW = $(if $(or $(GPU),$(THERE),$(filter-out x86_64,$(shell uname -m))),tensorflow,tensorflow-cpu)

# On two cores, for those who want to know before they wait.
QUICK_TIME = two minutes
TEST_TIME = an hour on two cores with three versions of Slurm; less where one is here

.PHONY: help demo quick docs pages coverage test say-how-long test-slurm test-slurm-older test-tensorflow test-training test-training-oldest test-recipes lint types slurm slurms matrix bench clean

help:
	@echo "make demo      install TensorFlow into $(VENV), and train two workers (a few minutes)"
	@echo "make quick     the tests that need neither Slurm nor TensorFlow ($(QUICK_TIME))"
	@echo "make coverage  the same, and whether they run enough of the code (twice as long)"
	@echo "make test      lint, types and all tests; those on a real Slurm on each that is here"
	@echo "               ($(TEST_TIME))"
	@echo "make docs      the guides and the reference as pages, in docs/_build"
	@echo "make slurm     install Slurm, munge, Open MPI and MPICH for the tests (Debian and Ubuntu)"
	@echo "make slurms    the same, and two other versions of Slurm beside it, in .slurms"
	@echo "make bench     measure against every peer, and write benchmarks/README.md's figures"
	@echo "make matrix    every Python from 3.9 on, the oldest and newest TensorFlow, the wheel"

# The demo is to be read, so TensorFlow keeps its own log to errors there.
demo: $(VENV)/demo
	@echo "Two workers train together with the fit of Keras 3: half a minute."
	@$(RUN) TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
		slurm-resolver run -n 2 -- python examples/quick_start/train.py
	@echo "To go on with the commands of README.md:  . $(VENV)/bin/activate"

quick: $(VENV)/tools
	$(RUN) python -m pytest -m "not slurm and not tensorflow"

docs: $(VENV)/docs pages
	@echo "Open docs/_build/docs/index.html."

# Without TensorFlow, and with nothing of the net: the pages can be read offline.
pages:
	$(RUN) sphinx-build --quiet --builder html --fail-on-warning --keep-going --nitpicky \
		-c docs . docs/_build

# Every process that the tests start is measured, which takes up to twice as long.
coverage: $(VENV)/tools
	$(RUN) python -m pytest -m "not slurm and not tensorflow" --cov

# Much of the tests is waiting, so four parts at a time run side by side. Those on a real Slurm are
# parts by its versions: what depends on none runs on the newest alone, and what trains and depends on
# them on the oldest and the newest. Training gives way to tests of deadlines and of lost tasks.
OLDER = $(if $(wildcard .slurms/*),test-slurm-older test-training-oldest)
PARTS = test-recipes test-training test-slurm test-tensorflow coverage
# With AGAIN=1, as CI says, these run what has failed once more; both runs stay in the output.
PYTEST = $(if $(AGAIN),sh tests/try_again.sh) python -m pytest -o cache_dir=.pytest_cache/$@
test: say-how-long lint types
	$(MAKE) --jobs=4 --keep-going --output-sync=target $(OLDER) $(PARTS)

say-how-long:
	@echo "make test takes $(TEST_TIME). make quick takes $(QUICK_TIME)."

test-slurm: $(VENV)/installed
	$(RUN) $(PYTEST) -m "slurm and not tensorflow" --slurm newest

test-slurm-older: $(VENV)/installed
	$(RUN) $(PYTEST) -m "slurm and not tensorflow and not newest" --slurm older

test-tensorflow: $(VENV)/installed
	$(RUN) nice $(PYTEST) -m "tensorflow and not slurm"

test-training: $(VENV)/installed
	$(RUN) nice $(PYTEST) -m "tensorflow and slurm" --slurm newest --ignore tests/recipes

test-recipes: $(VENV)/installed
	$(RUN) nice $(PYTEST) -m "tensorflow and slurm" --slurm newest tests/recipes

test-training-oldest: $(VENV)/installed
	$(RUN) nice $(PYTEST) -m "tensorflow and slurm and not newest" --slurm oldest

# At last: ruff's version stands in two files, and another version formats otherwise.
lint: $(VENV)/tools
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) lint-imports --no-cache --no-logo
	@wanted=$$(grep -o 'ruff==[0-9.]*' setup.cfg); ! grep 'ruff[=<>~]' .pre-commit-config.yaml \
		| grep -vF "\"$$wanted\"" || { echo "setup.cfg's test extra has $$wanted" >&2; exit 1; }

types: $(VENV)/installed
	$(RUN) mypy

slurm:
	sh tests/install_slurm.sh

slurms: slurm
	sh tests/install_slurms.sh .slurms

# Four at a time: much of the tests is waiting for processes and sockets.
# A Python that `make test` has just had can be left out: make matrix TESTED=3.11.
PYTHONS = $(filter-out $(TESTED),3.9 3.10 3.11 3.12 3.13)
SESSIONS = tensorflow-oldest tensorflow-newest $(PYTHONS:%=tests-%) package docs keras-versions
# the ends of the range that is supported; `nox -s keras-versions` takes all of Keras 3
nox-keras-versions: ENDS = -- 3.10 3.15

matrix: $(VENV)/tools
	$(MAKE) --jobs=4 --keep-going --output-sync=target $(SESSIONS:%=nox-%)

.PHONY: $(SESSIONS:%=nox-%)
$(SESSIONS:%=nox-%): nox-%:
	$(RUN) nox --session $* $(ENDS)

BENCHMARKS = resolution hostlists startup meeting meeting_live first_step restart keras_fit streams collectives parameter_servers

bench: $(VENV)/installed
	$(PIP) install $(EDITABLE) '.[bench]'
	set -e; for name in $(BENCHMARKS); do $(RUN) python benchmarks/$$name.py --write; done

clean:
	rm -rf $(VENV) .nox .coverage* build dist docs/_build *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis

# What the demo takes, by pip as it is, which shows what it does. Compiling all of TensorFlow's
# modules takes a minute; the few that are used are compiled when they are first imported.
SIZE_tensorflow = 640 MB to download, 2 GB
SIZE_tensorflow-cpu = 340 MB to download, 1.5 GB
$(VENV)/demo: setup.cfg
	@echo "Installing $(TENSORFLOW) and this package into $(VENV), and nothing outside it:"
	@echo "$(SIZE_$(TENSORFLOW)) on disk, one to three minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --disable-pip-version-check --no-compile \
		$(EDITABLE) '.[$(TENSORFLOW)]' || { echo "$$INSTALL_FAILED" >&2; exit 1; }
	@touch $@

define INSTALL_FAILED

The installation failed; pip says above why. Where it finds no TensorFlow, there is none yet for this
Python, $(shell $(PYTHON) --version 2>&1). With an older one:  rm -rf $(VENV); make demo PYTHON=python3.12
endef
export INSTALL_FAILED

# What builds the pages.
$(VENV)/docs: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(EDITABLE) '.[docs]'
	@touch $@

# What the tests without TensorFlow take, lint and nox.
$(VENV)/tools: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(EDITABLE) '.[test]'
	@touch $@

# All that the other tests, the types and the examples take. tf_keras requires the large TensorFlow,
# which has the same files as the demo's: only one of them can be removed again.
$(VENV)/installed: $(VENV)/tools
	@$(PIP) uninstall --yes tensorflow-cpu 2>/dev/null
	$(PIP) install $(EDITABLE) '.[tensorflow,examples,test]'
	@touch $@ $(VENV)/demo
