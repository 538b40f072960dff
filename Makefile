# Everything is set up in .venv at the repository root; what is installed there is listed in pyproject.toml alone.
# A stamp in .venv says what is installed, so that nothing is installed twice until pyproject.toml changes.

# On Windows python3 is a program that opens the Store.
PYTHON ?= $(if $(filter Windows_NT,$(OS)),python,python3)

VENV  := .venv
# A virtual environment of Windows has its programs in another folder.
PROGRAMS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN   := $(VENV)/$(PROGRAMS)
PEERS := .peers
LOWEST := $(PEERS)/lowest
NEWEST := $(PEERS)/newest
LOWEST_PYTHON ?= python3.11
PACKAGE_TESTS := repository/test_floors.py $(addprefix cli/test_,doctor.py cli.py) compiler/trace/test_numpys_functions.py \
  explain/test_picture.py keras $(addprefix arrow/test_arrow_,batches.py refused.py) ray onednn/test_vowels.py \
  $(addprefix compiler/targets/cpu/test_,llvm.py stored_code.py) onnx/test_onnx.py torch/test_torch_layers.py \
  $(addprefix layout/files/test_files_,onnx.py keras.py flax.py safetensors.py torch.py)
# What runs machine code for the processor that STEPNET_CPU names. Files whose tables have narrower processors are not among it.
PROCESSOR_TESTS := $(addprefix tests/compiler/targets/cpu/test_,call_block.py chain.py cpu.py driver.py early_ends.py \
  encoded_weights.py fiber_results.py fiber_statics.py fibers.py in_place.py llvm.py llvm_unusual.py step_places.py wavefront.py \
  workers.py) tests/model/test_random_steps.py tests/cells/test_cells.py
# What CI begins with on systems that nobody has run the other tests on: machine code, the cache, results in files.
ELSEWHERE_TESTS := $(filter-out %/test_workers.py,$(PROCESSOR_TESTS)) tests/compiler/disk tests/repository/test_other_systems.py \
  $(addprefix tests/arrow/,test_arrow_batches.py folders/test_folders.py)
# Old packages leave files and processes open when they are collected.
LOWEST_WARNINGS := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
PIP    = -m pip --disable-pip-version-check install --quiet --no-compile # Python compiles what is imported

PARALLEL = -n auto --dist worksteal # neighbouring tests share what was compiled; ARGS='-n 0' runs in one process

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
BENCH_PEERS := openvino tensorflow jax paddle
PEER_NAMES := openvino tensorflow jax paddle mxnet mlx ncnn chainer flashrnn fla spark peft

.PHONY: help demo page monitor noise voice test test-long test-lowest test-newest test-processor test-elsewhere test-fuzz test-gpu gpu-report test-emulated test-torchs-own ulps test-mutants lint types format docs docs-serve check bench bench-docs bench-peers ready-made pictures layouts peers test-peers dist publishable

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/demo.stamp ## a speaker classifier trained in PyTorch, run by stepnet
	$(BIN)/stepnet demo

page: $(VENV)/demo.stamp ## the same in a browser: a page of static files, in build/page
	$(BIN)/python examples/speaker_page.py build/page

monitor: $(VENV)/test.stamp ## a monitor of a motor: trained, built as C for a microcontroller, and run on faults
	$(BIN)/python examples/motor_monitor.py build/monitor

noise: $(VENV)/test.stamp ## noise suppression: trained, built as C for a microcontroller, and run on new noises
	$(BIN)/python examples/noise_suppression.py build/noise

voice: $(VENV)/test.stamp ## voice activity: trained, built as C without floats, and run on new voices and noises
	$(BIN)/python examples/voice_activity.py build/voice

test: $(VENV)/test.stamp ## all tests, doctests and the examples in README and docs, on all processors
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-long: $(VENV)/test.stamp ## what has a full length, at that: processes, whole tables, and 10,000 random steps, new each time
	$(BIN)/python -m pytest $(PARALLEL) --long -m long tests $(ARGS)

test-lowest: $(LOWEST)/peer.stamp ## the fast tests of what packages do, with the lowest version of each, in an environment of its own
	$(LOWEST)/$(PROGRAMS)/python -m pytest $(PARALLEL) $(LOWEST_WARNINGS) $(addprefix tests/,$(PACKAGE_TESTS)) $(ARGS)

test-newest: $(NEWEST)/peer.stamp ## the same tests with the newest version of each package, pre-releases among them
	$(NEWEST)/$(PROGRAMS)/python -m pytest $(PARALLEL) $(addprefix tests/,$(filter-out repository/%,$(PACKAGE_TESTS))) $(ARGS)

test-processor: $(VENV)/test.stamp ## what runs machine code, for the processor that STEPNET_CPU names: x86-64-v3, generic
	$(BIN)/python -m pytest $(PARALLEL) $(PROCESSOR_TESTS) $(ARGS)

test-elsewhere: $(VENV)/test.stamp ## what CI runs on macOS and Windows, in one process
	$(BIN)/python -m pytest -n 0 $(ELSEWHERE_TESTS) $(ARGS)

test-fuzz: $(VENV)/test.stamp ## files spoilt in a hundred thousand ways, against every reader
	$(BIN)/python tests/fuzz/hunt.py --count 100000 --keep build/mutants $(ARGS)

test-gpu: $(VENV)/test.stamp ## every kind of model, random steps and loops on an NVIDIA GPU, which must be there
	$(BIN)/python tests/processes/on_gpu.py $(ARGS)

gpu-report: $(VENV)/test.stamp ## all that is measured on an NVIDIA GPU, the most valuable first, into build/gpu-report.json
	$(BIN)/python -m bench.gpu report build/gpu-report.json $(ARGS)

test-emulated: $(VENV)/test.stamp ## tests of the engine, and the demo, under QEMU as 64-bit Arm and as an x86-64 without AVX
	$(BIN)/python tests/processes/emulated.py $(ARGS)

test-torchs-own: $(VENV)/test.stamp $(VENV)/torchs-own.stamp ## PyTorch's own tests of recurrent modules; TORCH_TESTS is `test` of its repository
	@[ -n "$(TORCH_TESTS)" ] || { echo "$(no_torch_tests)" >&2; exit 1; }
	$(BIN)/python -m tests.torch.pytorchs_own $(TORCH_TESTS) $(ARGS)

ulps: $(VENV)/test.stamp ## the elementary functions at every float32 there is, and how far off each is at most
	$(BIN)/python -m tests.compiler.targets.cpu.every_float $(ARGS)

test-mutants: $(VENV)/test.stamp ## small wrong changes of the compiler, and which of them no test notices
	$(BIN)/python tests/mutation/hunt_changes.py $(ARGS)

lint: $(VENV)/lint.stamp ## format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# With room for more new objects, node collects garbage more rarely: a tenth less processor time.
types: $(VENV)/lint.stamp $(VENV)/test.stamp ## pyright, strict on the package and on bench/runtimes
	NODE_OPTIONS="--max-semi-space-size=64 $$NODE_OPTIONS" $(BIN)/pyright $(ARGS)

format: $(VENV)/lint.stamp ## mend what lint would complain of, where that can be done
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Signatures on the site are formatted by ruff, so that is installed too.
docs: $(VENV)/lint.stamp $(VENV)/docs.stamp ## the documentation site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

docs-serve: $(VENV)/lint.stamp $(VENV)/docs.stamp ## the site on http://localhost:8000, anew after each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

check: lint types docs test ## lint, types, docs and all tests, of which CI runs a part

bench: $(VENV)/test.stamp ## the benchmark, against torch, onnxruntime and what bench-peers made
	$(BIN)/python -m bench $(ARGS)

bench-docs: $(VENV)/test.stamp ## the tables of the benchmark in docs/, from bench/saved
	$(BIN)/python -m bench.runtimes.page

bench-peers: $(BENCH_PEERS:%=$(PEERS)/%/peer.stamp) ## an environment for each peer of the benchmark that needs its own

peers: $(PEER_NAMES:%=$(PEERS)/%/peer.stamp) ## an environment for each framework that layouts are compared with

pictures: $(VENV)/test.stamp ## the pictures of the documentation, taken by Chromium
	$(BIN)/python -m pytest tests/explain/test_browser.py tests/examples/test_speaker_page.py -k screenshot --save --long

layouts: $(VENV)/test.stamp ## docs/layouts.md, from the records
	$(BIN)/python docs/layouts_page.py

test-peers: peers $(VENV)/test.stamp ## layouts, cells, files, Paddle's operators and programs, Keras' backends, JAX, Spark and PEFT against the frameworks themselves
	$(BIN)/python -m pytest $(addprefix tests/peers/,test_peers.py test_cells_themselves.py test_paddle_itself.py test_corpus.py test_keras_backends.py test_jax.py test_spark.py test_peft.py) $(ARGS)

ready-made: $(VENV)/release.stamp ## the machine code of known models that wheels have; on Linux and x86-64
	$(BIN)/python release/ready_made.py

# Both from this folder: a wheel made from the source distribution would lack the machine code.
dist: ready-made ## the wheel and the source distribution, in dist, built and checked
	rm -rf dist
	$(BIN)/python -m build --sdist --wheel --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python release/release_check.py

publishable: dist ## the same, and that nothing is missing that a package index shows
	$(BIN)/python release/release_check.py --publish

# What is installed

$(VENV)/pip.stamp:
	@$(call supported,$(PYTHON)) || { echo "$(wrong_python)" >&2; exit 1; }
	@[ -x $(BIN)/pip ] || { echo "making $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@$(call supported,$(BIN)/python) || { echo "$(wrong_venv)" >&2; exit 1; }
	@$(BIN)/python $(PIP) 'pip>=25.1' # the first that installs dependency groups
	@touch $@

$(VENV)/demo.stamp: pyproject.toml $(VENV)/pip.stamp
	@echo "installing stepnet in $(VENV) ..."
	@$(BIN)/python $(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml $(VENV)/pip.stamp
	@echo "installing stepnet and all that its tests need in $(VENV) ..."
	@$(BIN)/python $(PIP) --editable '.[demo,arrow,torch,keras,onnx,onednn,flax,ray]' --group test --group bench
	@touch $(VENV)/demo.stamp $@

$(VENV)/torchs-own.stamp: pyproject.toml $(VENV)/pip.stamp
	@$(BIN)/python $(PIP) --group torchs-own
	@touch $@

$(VENV)/lint.stamp: pyproject.toml $(VENV)/pip.stamp
	@echo "installing ruff and pyright in $(VENV) ..."
	@$(BIN)/python $(PIP) --group lint
	@touch $@

$(VENV)/docs.stamp: pyproject.toml $(VENV)/pip.stamp
	@echo "installing what the documentation site needs in $(VENV) ..."
	@$(BIN)/python $(PIP) --editable . --group docs
	@touch $@

$(VENV)/release.stamp: pyproject.toml $(VENV)/pip.stamp
	@echo "installing what builds and checks a release in $(VENV) ..."
	@$(BIN)/python $(PIP) --editable '.[onnx]' --group release
	@touch $@

$(NEWEST)/peer.stamp: pyproject.toml
	@echo "installing stepnet and the newest versions of what it needs in $(NEWEST) ..."
	@$(PYTHON) -m venv --clear $(NEWEST)
	@$(NEWEST)/$(PROGRAMS)/python $(PIP) 'pip>=25.1'
	@$(NEWEST)/$(PROGRAMS)/python $(PIP) --pre --upgrade --editable '.[arrow,torch,keras,onnx,onednn,flax,ray]' --group test-runners
	@touch $@

# The lowest versions have no wheels for a later Python.
$(LOWEST)/peer.stamp: pyproject.toml tests/lowest.txt
	@command -v $(LOWEST_PYTHON) >/dev/null || { echo "$(no_lowest_python)" >&2; exit 1; }
	@echo "installing stepnet and the lowest versions of what it needs in $(LOWEST) ..."
	@$(LOWEST_PYTHON) -m venv --clear $(LOWEST)
	@$(LOWEST)/$(PROGRAMS)/python $(PIP) 'pip>=25.1'
	@$(LOWEST)/$(PROGRAMS)/python $(PIP) --constraint tests/lowest.txt --editable '.[arrow,torch,keras,onnx,onednn,flax,ray]' --group peer-lowest
	@touch $@

# What is built from an old setup.py builds with the setuptools that its group names, so that is there first.
$(PEERS)/chainer/peer.stamp: pyproject.toml $(VENV)/pip.stamp
	@echo "installing chainer in $(PEERS)/chainer ..."
	@$(BIN)/python -m venv $(PEERS)/chainer
	@$(PEERS)/chainer/$(PROGRAMS)/python $(PIP) 'pip>=25.1' 'setuptools<70' wheel 'numpy==1.23.5'
	@$(PEERS)/chainer/$(PROGRAMS)/python $(PIP) --no-build-isolation --group peer-chainer
	@touch $@

$(PEERS)/%/peer.stamp: pyproject.toml $(VENV)/pip.stamp
	@echo "installing $* in $(PEERS)/$* ..."
	@$(BIN)/python -m venv $(PEERS)/$*
	@$(PEERS)/$*/$(PROGRAMS)/python $(PIP) 'pip>=25.1'
	@$(PEERS)/$*/$(PROGRAMS)/python $(PIP) --group peer-$*
	@touch $@

supported    = $(1) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null
found        = $$($(1) --version 2>/dev/null || echo not found)
wrong_python = stepnet needs Python 3.11 to 3.14, and $(PYTHON) is $(call found,$(PYTHON)). \
Name another one: make PYTHON=$(if $(filter Windows_NT,$(OS)),C:/path/to/python.exe,python3.12) ...
no_torch_tests = PyTorch's tests are in its repository alone: \
git clone --depth 1 --branch v2.13.0 https://github.com/pytorch/pytorch build/pytorch, \
then make test-torchs-own TORCH_TESTS=build/pytorch/test
no_lowest_python = the lowest versions need Python 3.11, and there is no $(LOWEST_PYTHON). \
Name another one: make test-lowest LOWEST_PYTHON=/path/to/python3.11
wrong_venv   = stepnet needs Python 3.11 to 3.14, and the one in $(VENV) is $(call found,$(BIN)/python). \
Remove $(VENV) and run make again.
