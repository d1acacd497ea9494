# Every target sets up what it needs; a second call takes seconds.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: install demo test check bench bench-memory bench-skills reading-path chaos chaos-tools chaos-memory clean upgrade

install: $(STAMP)

$(STAMP): pyproject.toml uv.lock
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'uv==0.13.9'
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/uv sync --frozen --quiet --inexact --compile-bytecode
	@touch $(STAMP)

demo: $(STAMP)
	@$(VENV)/bin/python -m examples.audit.demo

# What kills, or takes ports and stacks of its own, wants the machine for itself; all else runs side by side.
ALONE := $(patsubst %,tests/acceptance/test_%.py,demo memory_outages outages recovery stack tool_kills trees)

# Tests start a hundred processes of our code; where bytecode may not be kept, each compiles it anew.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)
	@$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(ALONE))
	@$(VENV)/bin/python -m pytest $(ALONE)

check: $(STAMP)
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

bench: $(STAMP)
	@$(VENV)/bin/python -m bench

chaos: $(STAMP)
	@$(VENV)/bin/python -m pytest tests/acceptance/test_recovery.py tests/acceptance/test_outages.py

# Runs of the earlier release BASE, finished by this one: `make upgrade BASE=v0.3.0`.
upgrade: $(STAMP)
	@$(VENV)/bin/python -m tests.acceptance.upgrade --base $(BASE)

chaos-tools: $(STAMP)
	@$(VENV)/bin/python -m tests.chaos.tool_kills --seeds 25

chaos-memory: $(STAMP)
	@$(VENV)/bin/python -m tests.chaos.memory --runs 200

bench-memory: $(STAMP)
	@$(VENV)/bin/python -m bench.retrieval
	@$(VENV)/bin/python -m bench.memory

bench-skills: $(STAMP)
	@$(VENV)/bin/python -m bench.skills --write

reading-path: $(STAMP)
	@$(VENV)/bin/python -m bench.reading_path

clean:
	rm -rf $(VENV) .loom .loom-demo .pytest_cache .mypy_cache .ruff_cache
