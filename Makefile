# `make demo` and `make test` set up everything they need in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Without a GPU, JAX must start on the CPU: the CUDA plugin is here as a compiler only.
export JAX_PLATFORMS ?= cpu

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench clean

help:
	@echo "make demo   verify a training step for a GPU that is not here"
	@echo "make test   lint, types and all tests, the GPU compiler's included"
	@echo "make lint   format, lint and type checks"
	@echo "make bench  reproduce the tables in docs/"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@echo "Setting up $(VENV) (about a minute, 1 GB: JAX and XLA's GPU compiler)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/jaxswap verify examples/gpt.py:step --device rtx4090 --set batch=16

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright

test: lint
	@$(BIN)/pytest

bench: setup
	@$(BIN)/python -m benchmarks.memory_table
	@$(BIN)/python -m benchmarks.flops_table
	@$(BIN)/python -m benchmarks.throughput_table

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
