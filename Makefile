# Installs whatever a target needs into .venv. `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
RUN = PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
PIP = $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
# Installs a path to this folder. The default of setuptools doubles Python's start-up time.
EDITABLE = --config-settings editable_mode=compat -e
# Without NVIDIA's GPUs, tensorflow-cpu is enough: it is half as large, and exists for x86_64 only.
# The two packages contain the same files, so an installed one is kept.
GPU = $(shell command -v nvidia-smi || ls -d /proc/driver/nvidia 2>/dev/null)
THERE = $(wildcard $(VENV)/lib/python3*/site-packages/tensorflow-[0-9]*)
TENSORFLOW = $(if $(or $(GPU),$(THERE),$(filter-out x86_64,$(shell uname -m))),tensorflow,tensorflow-cpu)

# Measured on two cores.
QUICK_TIME = two minutes
TEST_TIME = 20 minutes on two cores
NIGHTLY_TIME = 75 minutes on two cores

.PHONY: help demo quick docs pages coverage coverage-tf report-tf test test-oldest test-root say-how-long test-slurm test-tensorflow test-training slurm-if-possible nightly lint sizes types slurm newest-slurm slurms matrix bench clean

help:
	@echo "make demo      install TensorFlow into $(VENV), and train two workers (a few minutes)"
	@echo "make quick     the tests that need neither Slurm nor TensorFlow ($(QUICK_TIME))"
	@echo "make test      lint, types and the tests, on the newest installed Slurm"
	@echo "               ($(TEST_TIME))"
	@echo "make nightly   all tests, examples and commands of the guides, on every version of Slurm,"
	@echo "               Python, TensorFlow and Keras ($(NIGHTLY_TIME))"
	@echo "make coverage  the tests of make quick, with their coverage of the code"
	@echo "make coverage-tf  the tests with TensorFlow, with their coverage of tf/ (40 minutes)"
	@echo "make docs      the guides and the reference as pages, in docs/_build"
	@echo "make slurm     install Slurm, munge, Open MPI and MPICH for the tests (Debian and Ubuntu)"
	@echo "make slurms    the same, and two newer versions of Slurm beside it, in .slurms"
	@echo "make bench     compare with other packages, and write the figures of benchmarks/README.md"
	@echo "make matrix    every Python from 3.9 on, old and new TensorFlow and Keras, the wheel"

# TensorFlow logs only errors here, so that the output of the demo can be read.
demo: $(VENV)/demo
	@echo "Two workers train together with the fit of Keras 3: half a minute."
	@$(RUN) TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 \
		slurm-resolver run -n 2 -- python examples/quick_start/train.py
	@echo "Continue with the commands of README.md:  . $(VENV)/bin/activate"

quick: $(VENV)/tools
	$(RUN) python -m pytest -m "not slurm and not tensorflow"

docs: $(VENV)/docs pages
	@echo "Open docs/_build/index.html."

# The pages load nothing from the network, and can be read offline. TensorFlow is not needed.
pages:
	$(RUN) sphinx-build --quiet --builder html --fail-on-warning --keep-going --nitpicky \
		-c docs . docs/_build
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' > docs/_build/index.html

# Also measures the processes that the tests start, which takes up to twice as long. The tests with
# TensorFlow take too long for that in `make test`; COVER measures them.
COVER = --cov --cov-report= --cov-fail-under=0
MEASURED = COVERAGE_FILE=$(CURDIR)/.pytest_cache/$@.coverage
coverage: $(VENV)/tools
	$(RUN) $(MEASURED) $(PYTEST) -m "not slurm and not tensorflow" $(COVER)
	$(RUN) $(MEASURED) coverage report --omit='*/slurm_resolver/tf/*'

coverage-tf: $(VENV)/installed
	$(PARALLEL) TF_COVER="$(COVER)" test-tensorflow test-training
	$(MAKE) report-tf

# The coverage of tf/ by the tests with TensorFlow, also in the tasks of the real Slurm.
report-tf:
	$(RUN) coverage combine --keep --quiet --data-file=.pytest_cache/tf.coverage \
		.pytest_cache/test-tensorflow.coverage .pytest_cache/test-training.coverage
	$(RUN) coverage report --data-file=.pytest_cache/tf.coverage \
		--include='*/slurm_resolver/tf/*' --fail-under=90

# Tests on Slurm mostly wait, so the parts run side by side. Tests with TensorFlow need the processors:
# nice lets tests of deadlines and lost tasks run first.
PYTEST = python -m pytest -o cache_dir=.pytest_cache/$@
SELECTED = and not nightly
PARTS = test-training test-slurm coverage test-tensorflow
PARALLEL = $(MAKE) --jobs=3 --keep-going --output-sync=target

test: say-how-long slurm-if-possible lint types
	$(PARALLEL) $(PARTS)

say-how-long:
	@echo "make test takes $(TEST_TIME), and make quick $(QUICK_TIME)."

test-slurm: $(VENV)/installed
	$(RUN) $(PYTEST) -m "slurm and not tensorflow $(SELECTED)" --slurm newest

test-tensorflow: $(VENV)/installed
	$(RUN) $(MEASURED) nice $(PYTEST) -m "tensorflow and not slurm $(SELECTED)" $(TF_COVER)

test-training: $(VENV)/installed
	$(RUN) $(MEASURED) nice $(PYTEST) -m "tensorflow and slurm $(SELECTED)" --slurm newest \
		$(TF_COVER)

# The tests that depend on the version of Slurm, mainly those of layouts.
test-oldest: $(VENV)/installed
	$(RUN) $(PYTEST) -m "slurm and not tensorflow and not newest $(SELECTED)" --slurm oldest

# The tests that `make test` skips for an ordinary account.
test-root: $(VENV)/installed
	$(RUN) $(PYTEST) -m "root $(SELECTED)" --slurm newest

# All tests that `make test` leaves out, and all tests on the older versions of Slurm.
nightly: slurms lint types
	@echo "make nightly takes $(NIGHTLY_TIME)."
	$(PARALLEL) SELECTED= TF_COVER="$(COVER)" $(PARTS) \
		nightly-slurm nightly-training $(SESSIONS:%=nox-%)
	$(MAKE) report-tf

.PHONY: nightly-slurm nightly-training
nightly-slurm: $(VENV)/installed
	$(RUN) $(PYTEST) -m "slurm and not tensorflow and not newest" --slurm older

nightly-training: $(VENV)/installed
	$(RUN) nice $(PYTEST) -m "slurm and tensorflow and not newest" --slurm oldest

# The last command compares the versions of ruff in two files: other versions format differently.
lint: sizes $(VENV)/tools
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) lint-imports --no-cache --no-logo
	@wanted=$$(grep -o 'ruff==[0-9.]*' setup.cfg); ! grep 'ruff[=<>~]' .pre-commit-config.yaml \
		| grep -vF "\"$$wanted\"" || { echo "setup.cfg's test extra has $$wanted" >&2; exit 1; }

# The limits are in this file.
sizes:
	@$(PYTHON) tests/sizes.py

types: $(VENV)/installed
	$(RUN) mypy

slurm:
	sh tests/install_slurm.sh

# Installs Slurm if that needs no password. Without Slurm, the tests that need it are skipped.
slurm-if-possible:
	@sh tests/install_slurm.sh --if-possible

newest-slurm: slurm
	sh tests/install_slurms.sh .slurms forky

slurms: slurm
	sh tests/install_slurms.sh .slurms

# `nox --list` describes them.
SESSIONS = tensorflow keras-versions keras-nightly jax $(patsubst %,tests-%,3.9 3.10 3.11 3.12 3.13) package docs

matrix: $(VENV)/tools
	$(PARALLEL) $(SESSIONS:%=nox-%)

.PHONY: $(SESSIONS:%=nox-%)
$(SESSIONS:%=nox-%): nox-%:
	$(RUN) nox --session $*

BENCHMARKS = resolution hostlists startup meeting meeting_live first_step keras_fit scaling collectives overlap parameter_servers

bench: $(VENV)/installed
	$(PIP) install $(EDITABLE) '.[bench]'
	set -e; for name in $(BENCHMARKS); do $(RUN) python benchmarks/$$name.py --write; done

clean:
	rm -rf $(VENV) .nox .coverage* build dist docs/_build *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis

# What the demo needs. pip is not quiet here, because the download takes minutes. Compiling all modules of
# TensorFlow would take another minute; Python compiles the few that are imported.
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

The installation failed; the message of pip is above. If it found no TensorFlow, none exists yet for
$(shell $(PYTHON) --version 2>&1). Use an older Python:  rm -rf $(VENV); make demo PYTHON=python3.12
endef
export INSTALL_FAILED

# What `make pages` needs.
$(VENV)/docs: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(EDITABLE) '.[docs]'
	@touch $@

# What lint, nox and the tests without TensorFlow need.
$(VENV)/tools: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(EDITABLE) '.[test]'
	@touch $@

# What the types, the examples and the other tests need. tf_keras requires the package tensorflow. It
# contains the same files as the demo's tensorflow-cpu, which is removed first.
$(VENV)/installed: $(VENV)/tools
	@$(PIP) uninstall --yes tensorflow-cpu 2>/dev/null
	$(PIP) install $(EDITABLE) '.[tensorflow,examples,test]'
	@touch $@ $(VENV)/demo
