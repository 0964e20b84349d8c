# `make help` lists the targets. The demo is installed into .venv, and what the tests need into .venv-tests.

export PYTHON ?= python3
RUN = bash tests/run.sh
PARTS = slurm training tensorflow quick
SESSIONS = tensorflow keras-versions keras-nightly jax package docs
SESSIONS += tests-3.9 tests-3.10 tests-3.11 tests-3.12 tests-3.13

.PHONY: help demo quick lint sizes test nightly coverage matrix docs slurm slurms bench clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

demo: ## install TensorFlow into .venv, and train two workers (a few minutes)
	@bash examples/demo.sh

quick: ## the tests that need neither Slurm nor TensorFlow (two minutes)
	@$(RUN) quick

lint: ## style, imports between folders, and the size of the code
	@$(RUN) lint

sizes: ## the size of the code and its limits, in nodes of Python's syntax tree
	@$(PYTHON) tests/sizes.py

test: ## lint, types and the tests, on the newest installed Slurm (25 minutes on two cores)
	@echo "make test takes 25 minutes on two cores, and make quick two minutes."
	@sh tests/install_slurm.sh --if-possible
	@$(RUN) lint $(PARTS) types

nightly: slurms ## all tests, examples and guides, with all versions of everything (75 minutes)
	@$(RUN) --all --measure lint $(PARTS) types older oldest-training $(SESSIONS:%=nox-%)

coverage: ## the tests of make quick, with their coverage of the code
	@$(RUN) --measure quick

matrix: ## every Python from 3.9 on, old and new TensorFlow and Keras, the wheel
	@$(RUN) $(SESSIONS:%=nox-%)

docs: ## the guides and the reference as pages, in docs/_build
	@$(RUN) nox-docs
	@echo "Open docs/_build/index.html."

slurm: ## install Slurm, munge, Open MPI and MPICH for the tests (Debian and Ubuntu)
	@sh tests/install_slurm.sh

slurms: slurm ## the same, and two newer versions of Slurm beside it, in .slurms
	@sh tests/install_slurms.sh .slurms

bench: ## compare with other packages, and write the figures of benchmarks/README.md
	@$(RUN) nox-bench

clean: ## remove all environments, caches and built files
	rm -rf .venv .venv-tests .nox .coverage* build dist docs/_build *.egg-info
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
