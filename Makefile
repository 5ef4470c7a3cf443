# The two commands of a fresh machine are `make eval` and `make test`; both install what they need, once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python

# uv where there is one that works, else pip: the same files with the same hashes.
UV := $(shell uv --version >/dev/null 2>&1 && command -v uv)
ifneq ($(UV),)
CREATE = $(UV) venv --quiet --python $(PYTHON) $(VENV)
# By itself uv compiles nothing, as pip does: where Python may not write, each start would compile all it imports.
INSTALL = $(UV) pip install --quiet --python $(RUN) --no-deps $(if $(PYTHONDONTWRITEBYTECODE),--compile-bytecode)
else
CREATE = $(PYTHON) -m venv $(VENV)
# An environment that uv made has no pip of its own.
INSTALL = { $(RUN) -m pip --version >/dev/null 2>&1 || $(RUN) -m ensurepip >/dev/null; } && \
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps
endif

# Tests wait for servers now and then: one worker more than there are cores. Each has a Prefect server of its own, so
# eight at most.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= $(shell echo $$(( $(CORES) < 2 ? 3 : $(CORES) > 7 ? 8 : $(CORES) + 1 )))
PYTEST = $(RUN) -m pytest -n $(WORKERS) --dist worksteal

# The runtime set is enough to evaluate; tests, checks and benches use the development set. A stamp remembers what is
# installed, so that the second call of either installs nothing.
BASE := $(VENV)/.base-installed
DEV := $(VENV)/.dev-installed

.PHONY: eval test test-slow test-services test-serving test-inspect test-nights check check-types check-lines format bench ui stop deploy worker docs reference locks clean

eval: $(BASE)
	$(RUN) -m flows.eval

.venv: $(BASE)

$(BASE): requirements.lock pyproject.toml
	@test -x $(RUN) || $(CREATE)
	@$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; call make PYTHON=python3.x"; exit 2; }
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --editable .
	@$(RUN) -m compileall -q flows tasks scorers metrics  # a second off every start where Python may not write
	@touch $@

$(DEV): requirements-dev.lock $(BASE)
	$(INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@

test: $(DEV)
	$(PYTEST) -m "not slow and not services and not nights and not serving and not inspect"

test-slow: $(DEV)
	$(PYTEST) -m slow

test-services: $(DEV)
	$(PYTEST) -m "services and not nights"

# The built-in server on the oldest and the newest transformers of the extra hf. Both environments use one torch: that
# of the CPU where pip finds it, since others are several GB.
TORCH = 2.13.0
HF_TORCH := .venv-hf-torch/bin/python

.venv-hf-torch/.installed: Makefile
	@test -x $(HF_TORCH) || $(PYTHON) -m venv .venv-hf-torch
	$(HF_TORCH) -m pip install -qq --disable-pip-version-check torch==$(TORCH)+cpu 2>/dev/null || \
		$(HF_TORCH) -m pip install -qq --disable-pip-version-check torch==$(TORCH)
	@touch $@

.venv-hf-%/.installed: requirements-hf-%.lock .venv-hf-torch/.installed
	@rm -rf .venv-hf-$*
	$(PYTHON) -m venv --without-pip .venv-hf-$*
	$(HF_TORCH) -m pip --python .venv-hf-$*/bin/python install -qq --disable-pip-version-check --no-deps \
		--require-hashes -r requirements-hf-$*.lock
	@$(HF_TORCH) -c 'import pathlib, sysconfig; own = pathlib.Path(sysconfig.get_path("purelib")); \
		(pathlib.Path(".venv-hf-$*", *own.parts[-3:]) / "torch.pth").write_text(f"{own}\n")'
	@touch $@

test-serving: $(DEV) .venv-hf-oldest/.installed .venv-hf-newest/.installed
	$(RUN) -m pytest -n 2 --dist loadfile -m serving

# The tests that ask inspect_ai, which is in an environment of its own: it wants other versions than the test tools.
INSPECT := .venv-inspect/bin/python

.venv-inspect/.installed: requirements-inspect.lock
	@rm -rf .venv-inspect
	$(PYTHON) -m venv .venv-inspect
	$(INSPECT) -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements-inspect.lock
	@touch $@

test-inspect: $(DEV) .venv-inspect/.installed
	$(RUN) -m pytest -n 2 --dist worksteal -m inspect

test-nights: $(DEV)
	$(PYTEST) -m nights

# In two, for `make -j2`: types take as long as all the rest.
check: check-types check-lines

check-types: $(DEV)
	$(BIN)/mypy

check-lines: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/deptry .

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)
	$(RUN) -m bench

ui: $(BASE)
	deployments/local.sh ui

deploy: $(BASE)
	deployments/local.sh deploy

worker: $(BASE)
	deployments/local.sh worker

# A warning is an error: a link to a page, a heading or a file that is not there, a page that the index does not list.
docs: $(DEV)
	@rm -rf site  # pages that did not change would not be checked again
	$(RUN) -m sphinx -W --keep-going -q -c docs . site
	@echo "site/index.html"

# The locks, after a change of pyproject.toml: hashes for every platform, and no word on where packages come from.
LOCK = UV_CUSTOM_COMPILE_COMMAND="make locks" uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links
EXTRA = $(PYTHON) -c 'import sys, tomllib; \
	extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*extras[sys.argv[1]], sep="\n")'
# Torch is installed beside them, and left out of their locks with all that it brings.
NO_TORCH = --override .ci/without-torch.txt

locks:
	$(LOCK) pyproject.toml -o requirements.lock
	$(LOCK) pyproject.toml --extra dev -o requirements-dev.lock
	$(LOCK) pyproject.toml --extra harness -o requirements-harness.lock
	$(LOCK) pyproject.toml --extra containers -o requirements-containers.lock
	$(EXTRA) test-serving | $(LOCK) - $(NO_TORCH) --resolution lowest-direct -o requirements-hf-oldest.lock
	$(EXTRA) test-serving | $(LOCK) - $(NO_TORCH) -o requirements-hf-newest.lock
	$(EXTRA) test-inspect | $(LOCK) - -o requirements-inspect.lock

# The pages of every config key and of every stage, and the schema that editors check a config with.
reference: $(BASE)
	$(RUN) -m flows.catalog config --markdown > docs/config.md
	$(RUN) -m flows.catalog config --schema > docs/config.schema.json
	$(RUN) -m flows.catalog stages --markdown > docs/stages.md
	$(RUN) -m flows.catalog aggregations --markdown > docs/aggregations.md

stop:
	@test ! -x $(RUN) || deployments/local.sh stop

clean: stop
	rm -rf $(VENV) .venv-hf-* .venv-inspect .nightjar results
