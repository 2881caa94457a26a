# `make demo` and `make test` set up everything they need in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Without a GPU, JAX must start on the CPU: the CUDA plugin is here as a compiler only.
export JAX_PLATFORMS ?= cpu

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint docs chromium bench bench-full clean

help:
	@echo "make demo   fit a GPT on a GPU that is not here, and train a small one"
	@echo "make test   lint, types and all tests, the GPU compiler's included"
	@echo "make lint   format, lint and type checks"
	@echo "make docs   build the site into site/, strictly"
	@echo "make bench  reproduce the tables in docs/, and a part of the benchmark: minutes"
	@echo "make bench-full  all of the benchmark: many hours"

setup: $(STAMP)

$(STAMP): pyproject.toml
	@echo "Setting up $(VENV) (about a minute, 1 GB: JAX and XLA's GPU compiler)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup
	@TF_CPP_MIN_LOG_LEVEL=2 $(BIN)/python examples/demo.py --out build/demo

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "wrote site/index.html"

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright

# The report's page is tested in a real browser. Best effort, as root on Debian or Ubuntu: without
# a browser those tests are skipped, with the reason.
CHROMIUM_PACKAGES := chromium fonts-dejavu-core
chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  if command -v $$name >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium, for the tests of the report's page"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { timeout 300 apt-get install -qq --no-install-recommends $(CHROMIUM_PACKAGES) || \
	    { timeout 120 apt-get update -qq && \
	      timeout 300 apt-get install -qq --no-install-recommends $(CHROMIUM_PACKAGES); }; \
	  } >/dev/null 2>&1 || echo "Chromium cannot be installed here: its tests are skipped"; \
	else echo "There is no Chromium: the tests of the report's page are skipped"; fi

test: lint docs chromium
	@$(BIN)/pytest

bench: setup
	@$(BIN)/python -m benchmarks.memory_table
	@$(BIN)/python -m benchmarks.flops_table
	@$(BIN)/python -m benchmarks.throughput_table
	@$(BIN)/python -m benchmarks.bench --models resnet50 --devices rtx4090 --shares 0.5 \
	  --contenders unplanned,nothing_saveable,save:conv,genetic
	@$(BIN)/python -m benchmarks.bench --table

bench-full: setup
	@$(BIN)/python -m benchmarks.bench --timeout 1800
	@$(BIN)/python -m benchmarks.bench --write

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
