# The two commands of a fresh machine are `make eval` and `make test`; both install what they need, once.
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python

# The runtime set is enough to evaluate; tests, checks and benches use the development set. A stamp remembers what is
# installed, so that the second call of either installs nothing.
BASE := .venv/.base-installed
DEV := .venv/.dev-installed

.PHONY: eval test test-slow test-services check format bench ui stop deploy docs clean

eval: $(BASE)
	$(RUN) -m flows.eval

.venv: $(BASE)

$(BASE): requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; call make PYTHON=python3.x"; exit 2; }
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(RUN) -m compileall -q flows tasks scorers metrics  # a second off every start where Python may not write
	@touch $@

$(DEV): requirements-dev.lock $(BASE)
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.lock
	@touch $@

test: $(DEV)
	$(RUN) -m pytest -m "not slow and not services"

test-slow: $(DEV)
	$(RUN) -m pytest -m slow

test-services: $(DEV)
	$(RUN) -m pytest -m services

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)
	$(RUN) -m bench

ui: $(BASE)
	deployments/local.sh ui

deploy: $(BASE)
	deployments/local.sh deploy

docs: $(BASE)
	$(RUN) docs/build.py

stop:
	@test ! -x $(BIN)/python || deployments/local.sh stop

clean: stop
	rm -rf .venv .nightjar results
