# Everything from a clone: `make demo` trains and shows a model, `make test` runs every check. Both set up .venv first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := weights,tflite,tensorboard,wandb,mlflow,sweep,postgresql,mysql,cluster,faces,rembg,completion,coco,huggingface,attribution,serve,export,docs,test
# Two workers with one thread each instead of one with two: most of a test's time is not in torch. And glibc keeps what a
# tensor gives back instead of returning it to the system page by page: that took as long as the convolutions themselves.
# Compiled files are kept even where the machine says otherwise: each worker and each command would compile all anew.
TEST_ENV := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=536870912

.PHONY: demo test pytest test-fast test-oldest test-newest lint docs pictures results notebook wheel bench bench-peers faults install system clean

install: $(STAMP)

# Made anew only when what it is made from has changed.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name it with make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)
	$(BIN)/dapl demo

# What the tests need of the system: a browser, the libraries of OpenCV, network namespaces and database servers. Without
# them their tests are skipped.
system: $(STAMP)
	@missing=""; command -v chromium >/dev/null || missing="chromium"; \
	$(BIN)/python -c 'import cv2' 2>/dev/null || missing="$$missing libgl1 libglib2.0-0"; \
	command -v ip >/dev/null || missing="$$missing iproute2"; \
	ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$$missing postgresql"; \
	ls /usr/sbin/mariadbd >/dev/null 2>&1 || missing="$$missing mariadb-server"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $$missing"; { apt-get update -qq && apt-get install -y -qq $$missing >/dev/null; } \
			|| echo "could not install $$missing: the tests that need it are skipped"; \
	else echo "not root: install $$missing to run all tests; those that need it are skipped"; fi

# The checks of `make lint` run beside the tests: mypy has one process, and would leave the other core idle for a minute.
test: $(STAMP) system
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest:
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal --durations 30

test-fast: system
	$(TEST_ENV) $(BIN)/pytest -n 2 --dist worksteal -m 'not slow'

# A selection of the tests (imports, configs, every system trained, evaluated, reported and exported) in environments of
# their own: with the oldest versions that pyproject.toml admits, and with the newest that the package index has. Both
# may download a torch with CUDA, about 7 GB on disk. TESTS=tests runs all of them.
TESTS ?= tests/common/test_operators.py tests/test_front_door.py tests/config/test_config.py \
	tests/metrics/test_regions.py tests/evaluation/test_systems.py tests/report/test_page.py tests/export/test_onnx.py
test-oldest:
	test -x build/oldest/bin/python || $(PYTHON) -m venv build/oldest
	$(PYTHON) tests/oldest_versions.py > build/oldest/constraints.txt
	build/oldest/bin/pip install --quiet --constraint build/oldest/constraints.txt --editable '.[$(EXTRAS)]'
	$(TEST_ENV) build/oldest/bin/pytest -n 2 --dist worksteal $(TESTS)

test-newest:
	test -x build/newest/bin/python || $(PYTHON) -m venv build/newest
	build/newest/bin/pip install --quiet --upgrade --upgrade-strategy eager --editable '.[$(EXTRAS)]'
	$(TEST_ENV) build/newest/bin/pytest -n 2 --dist worksteal $(TESTS)

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks faults docs
	$(BIN)/ruff format --check src tests benchmarks faults docs
	$(BIN)/mypy

# The site, in build/site: a dead link or a broken docstring fails. The drawing of the rooms is made anew before.
docs: $(STAMP)
	$(BIN)/python docs/import_graph.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The pages of results, from their templates and the numbers in docs/results.
results: $(STAMP)
	$(BIN)/python docs/render_results.py

# The images of README and docs, from runs that are trained for it: five minutes on two cores. Some of them, or of runs that
# are there: make pictures PICTURES='report serve --demo runs/demo'.
PICTURES ?=
pictures: $(STAMP) system
	$(TEST_ENV) $(BIN)/python docs/make_images.py $(PICTURES)

# Runs the notebook of the documentation again and keeps what it shows.
notebook: $(STAMP)
	$(BIN)/python docs/run_notebook.py

# Without what an earlier build left behind: setuptools would pack files that are gone from the source.
wheel: $(STAMP)
	rm -rf build/lib build/bdist.*
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# CaBRNet in an environment of its own, on top of this one's packages (torch above all) and with what its commands for
# training, evaluation and explanation import. Needs DAPL_CUB. PER_CLASS training images for each of 100 classes: the
# default takes about ten minutes on one core.
PEERS := build/peers
PER_CLASS ?= 10
bench-peers: $(STAMP)
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > \
		$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	$(PEERS)/bin/pip install --quiet --no-deps cabrnet==1.2 loguru graphviz py-cpuinfo thop zenodo-get onnx_graphsurgeon
	rm -rf $(PEERS)/work
	$(BIN)/python -m benchmarks.peers $(PEERS)/bin/python $(PEERS)/work $(PER_CLASS)

# The campaign against everything: bad inputs, kills, disks, two at once, the server, hostile folders. Fails on any fault.
faults: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m faults

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
