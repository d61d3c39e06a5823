# Everything from a clone: `make demo` trains and shows a model, `make test` runs every check. Both set up .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Two workers with one thread each instead of one with two: most of a test's time is not in torch.
TEST_ENV := OMP_NUM_THREADS=1

.PHONY: demo test test-fast lint bench install clean

install: $(STAMP)

# Made anew only when what it is made from has changed.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name it with make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[weights,tensorboard,sweep,faces,coco,serve,export,test]'
	@touch $@

demo: $(STAMP)
	$(BIN)/dapl demo

test: lint
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal

test-fast: $(STAMP)
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal -m 'not slow'

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
