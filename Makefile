# Everything a contributor runs. `make test` on a fresh clone sets up the rest by itself.

PYTHON ?= $(shell .ci/python)
BIN := .venv/bin
INSTALLED := .venv/.installed
# pip does not compile, because Python compiles what it runs the first time. It must be allowed to keep the result:
# some machines set this variable, and each of the tests' many processes would begin by compiling Spark's modules.
unexport PYTHONDONTWRITEBYTECODE
# The lock file names all packages. PySpark is packed before it is installed, which takes as long as all others do:
# it is installed beside them, and not compressed, which doubled the time.
INSTALL := $(BIN)/python -m pip install --quiet --no-deps --no-compile --use-pep517
CLASSES := .venv/share/backfill-tests/spark.jsa
# Three processes take one test after the other, the long ones first, so that all end at the same time. On two cores,
# two processes left a third of the time unused, because tests wait, and four took longer, because each starts a Spark.
# ARGS="-n 2" starts two; ARGS="-n 0 -s" starts none, and shows what tests print.
SIDE_BY_SIDE := -n 3 --maxschedchunk 1
CHECKED := datasource state_store tests integration benchmarks

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(INSTALLED) ## put everything into .venv; Java and locales come from apt if missing

# The files in .venv name their own place, so it is made anew where the clone was moved.
.PHONY: moved
ifneq ($(shell cat $(INSTALLED) 2>/dev/null),$(CURDIR))
$(INSTALLED): moved
endif

$(INSTALLED): requirements.lock pyproject.toml
	@test ! -e $@ || test "$$(cat $@)" = "$(CURDIR)" || rm -rf .venv
	@.ci/system "$(PYTHON)"
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv .venv
	$(INSTALL) --config-settings=--build-option=--compression=stored $$(grep '^pyspark==' requirements.lock) & \
	grep -v '^pyspark==' requirements.lock | $(INSTALL) --requirement /dev/stdin; others=$$?; wait $$! && exit $$others
	$(INSTALL) --no-build-isolation --editable .
	@echo "$(CURDIR)" >$@

# With this archive each of the tests' many JVMs starts in half the time; nothing else depends on it.
$(CLASSES): $(INSTALLED) integration/spark_classes.py
	@echo "keeping Spark's classes for the tests"
	@$(BIN)/python -m integration.spark_classes >.venv/classes.log 2>&1 || cat .venv/classes.log

# Does what each of the tests' processes would otherwise do at the same time as the others, while a core is idle because
# Java writes its archive. An error here is ignored: it comes again where it matters, and is told there.
.PHONY: beforehand
beforehand: setup
	@nice $(BIN)/python -c 'from integration.servers import collation; collation.compile_all()' 2>/dev/null || true
	@nice $(BIN)/python -m pytest --collect-only --quiet integration tests >/dev/null 2>&1 || true

.PHONY: test
test: setup ## lint, types, imports, then all tests
	@$(MAKE) --no-print-directory --jobs 4 lint types imports $(CLASSES) beforehand
	TMPDIR=$$(.ci/temporary) $(BIN)/python -m pytest $(SIDE_BY_SIDE) integration tests $(ARGS)

.PHONY: crash
crash: export BACKFILL_CRASH_SECONDS ?= 900
crash: setup ## kill drivers, readers and servers at random for BACKFILL_CRASH_SECONDS (900)
	$(BIN)/python -m pytest --timeout 0 integration/test_crash_random.py $(ARGS)

.PHONY: lint
lint: setup ## style and layout of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: setup ## mypy, strict, tests included
	$(BIN)/mypy $(CHECKED)

.PHONY: imports
imports: setup ## who may import whom
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: setup ## lay out the code, mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: demo
demo: setup ## watch a backfill happen
	$(BIN)/python -m integration.demo $(ARGS)

.PHONY: pictures
pictures: setup ## make the README's pictures of the live view; needs tmux
	$(BIN)/python -m integration.pictures

.PHONY: bench
bench: setup ## measure against other readers
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: lock
lock: ## renew requirements.lock: the newest versions that pyproject.toml allows
	@.ci/system "$(PYTHON)"
	rm -rf build/lock
	"$(PYTHON)" -m venv build/lock
	build/lock/bin/python -m pip install --quiet --editable '.[dev]'
	{ echo '# Every package that the tests run with. Written by `make lock`.'; \
	  build/lock/bin/python -m pip freeze --exclude-editable; } > build/requirements.lock
	mv build/requirements.lock requirements.lock
	rm -rf build/lock

.PHONY: clean
clean: ## remove what the other targets have made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf build dist .demo .bench spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
