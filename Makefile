# One command per task. Each first sets up what it needs: a virtual environment from the hashed locks, then the build.
#
#   make demo | test | test-upstream | check | docs | format | bench | wheel | gpu-bundle | asan | asan-python | tsan | tsan-python | sanitize | fuzz | instructions
#        lock | clean
#
#   PYTHON=python3.12  VENV=folder      the interpreter, and the folder of its environment
#   TORCH=2.15                          another torch of requirements/torch-*.txt (2.14, 2.15), in its own environment
#   AXON_CUDA=0                         no device code, no nvcc
#   AXON_CUDA_ARCHITECTURES=80,90       the GPUs to compile device code for; default: this machine's, make wheel: all
#   AXON_UCX_ROOT=/opt/ucx              your own UCX instead of the libucx wheel
#   FUZZ_RUNS=10000000                  inputs per target for make fuzz
#   RECORD=1                            make instructions appends its counts to benchmarks/results, and passes
TORCH ?= 2.11
PYTHON ?= python3
VENV ?= .venv$(if $(filter-out 2.11,$(TORCH)),-torch-$(TORCH))
# Processors that this shell may use. nproc alone follows OMP_NUM_THREADS, which users of torchrun set to 1.
JOBS ?= $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
AXON_CUDA ?= 1
FUZZ_RUNS ?= 1000000

BIN := $(abspath $(VENV))/bin
CUDA := $(VENV)/cuda
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -q
CTEST := $(BIN)/ctest --output-on-failure --progress -j $(JOBS)
LOCK := $(BIN)/uv pip compile -q --universal --generate-hashes --no-header $(UPGRADE)
CXX_FILES = $(shell find csrc tests benchmarks examples -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh')

TOOLCHAIN := $(VENV)/.installed $(if $(filter-out 0,$(AXON_CUDA)),$(CUDA)/.installed)
# Only these goals need GoogleTest, so `make demo` works without it.
TESTS := $(if $(filter test gpu-bundle asan tsan sanitize instructions,$(MAKECMDGOALS)),1,0)
BUILD_DIR := $(abspath build)/$(patsubst .%,%,$(notdir $(VENV)))
BUILD := AXON_BUILD_DIR=$(BUILD_DIR) AXON_TESTS=$(TESTS)

export AXON_CUDA
export AXON_CUDA_ROOT ?= $(abspath $(CUDA))/nvidia/cu13
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-upstream check docs format bench wheel gpu-bundle asan asan-python tsan tsan-python sanitize fuzz instructions lock clean build host
.DELETE_ON_ERROR:

demo: $(VENV)/.editable
	@$(BIN)/python examples/demo.py

test: $(VENV)/.editable
	@$(CTEST) --test-dir $(BUILD_DIR)
	@$(BIN)/python -m pytest

# Runs all of PyTorch's own backend tests, and compares them with the lists of tests/upstream; `make test` runs the
# listed tests.
test-upstream: $(VENV)/.editable
	@$(BIN)/python tests/upstream/report.py

bench: $(VENV)/.editable
	@$(BIN)/torchrun --standalone --nproc-per-node 2 -m torch_axon.bench --vs gloo

# Code for 8.0 also runs on 8.6 and 8.9, and code for 10.0 on 10.3. Later GPUs translate its PTX when they first load it.
GPUS := $(or $(AXON_CUDA_ARCHITECTURES),80-real 90-real 100 120-real)
wheel: $(TOOLCHAIN)
	@rm -rf dist build/lib.* build/bdist.* build/wheel
	@AXON_BUILD_DIR=$(BUILD_DIR)-wheel AXON_TESTS=0 AXON_CUDA_ARCHITECTURES="$(GPUS)" $(BIN)/python -m pip wheel -q --no-build-isolation --no-deps --wheel-dir build/wheel .
	@PATH=$(BIN):$$PATH $(BIN)/auditwheel repair --strip --exclude 'libtorch*' --exclude 'libc10*' --wheel-dir dist build/wheel/*.whl
	@ls dist/*.whl

# The files that benchmarks/cuda/run_on_gpu_host.sh needs on a GPU host with the same Python and torch, but no network.
GPU_BUNDLE := build/gpu-bundle
gpu-bundle: GPUS = 90
gpu-bundle: wheel
	@rm -rf $(GPU_BUNDLE) && mkdir -p $(GPU_BUNDLE)/bin
	@$(BIN)/cmake -DAXON_TESTS=ON $(BUILD_DIR)
	@$(BIN)/cmake --build $(BUILD_DIR) --target gpu_test device_bench condition_bench
	@strip -o $(GPU_BUNDLE)/bin/device_bench $(BUILD_DIR)/benchmarks/device_bench
	@strip -o $(GPU_BUNDLE)/bin/condition_bench $(BUILD_DIR)/benchmarks/condition_bench
	@cp $(BUILD_DIR)/tests/cpp/gpu_test $(GPU_BUNDLE)/bin
	@xz -T0 $(GPU_BUNDLE)/bin/*
	@cp dist/*.whl $(GPU_BUNDLE)
	@sed -n '/^\(libucx-cu13\|expecttest\)==/,/[^\\]$$/p' requirements/torch-$(TORCH).txt > $(GPU_BUNDLE)/requirements.txt
	@$(BIN)/python -m pip download -q --no-deps --require-hashes -d $(GPU_BUNDLE) -r $(GPU_BUNDLE)/requirements.txt
	@$(BIN)/python tools/pack_wheels.py $(GPU_BUNDLE)/*.whl
	@git describe --always --dirty > $(GPU_BUNDLE)/commit
	@du -sh $(GPU_BUNDLE)

check: $(VENV)/.editable
	@$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	@$(BIN)/ruff format --check -q
	@$(BIN)/ruff check -q
	@$(BIN)/mypy
	@$(BIN)/python tools/check_stub.py
	@$(BIN)/python tools/check_layers.py
	@$(BIN)/python tools/check_names.py
	@$(BIN)/python tools/check_prose.py
	@$(BIN)/python tools/check_sizes.py
	@$(BIN)/python tools/check_kernels.py
	@$(BIN)/python tools/check_commits.py
	@$(BIN)/python tools/check_readme.py
	@$(BIN)/python -m torch_axon.config --markdown | diff -u docs/environment.md - || { echo "run: make docs"; exit 1; }
	@$(BIN)/python benchmarks/performance.py | diff -u docs/performance.md - || { echo "run: make docs"; exit 1; }

# Builds the site in build/site, from docs/ and from pages that are generated from the code.
docs: $(VENV)/.editable $(VENV)/.docs
	@$(BIN)/python -m torch_axon.config --markdown > docs/environment.md
	@$(BIN)/python benchmarks/performance.py --write
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@echo build/site/index.html

format: $(VENV)/.installed
	@$(BIN)/clang-format -i $(CXX_FILES)
	@$(BIN)/ruff check -q --fix
	@$(BIN)/ruff format -q

sanitize: asan tsan asan-python tsan-python

asan tsan: $(VENV)/.installed
	@$(BIN)/cmake --preset $@ -DAXON_PYTHON=$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja
	@$(BIN)/cmake --build --preset $@
	@$(CTEST) --test-dir build/$@

# Tests the Python package under the sanitizers: a copy of it with its own extension, in an interpreter without
# sanitizers. libstdc++ is preloaded, too, so that the sanitizer finds the functions that it intercepts. Leaks of the
# interpreter are ignored. So are the memory accesses of torch and UCX, which the thread sanitizer cannot see.
SANITIZED_TESTS := collectives/test_reductions collectives/test_point_to_point collectives/test_back_pressure \
  groups/test_groups groups/test_rendezvous failures/test_mismatches failures/test_deaths \
  $(addprefix runtime/test_runtime,_cancelling _tensors _values _closed_loops _finalizers _streams _interrupts _stalls) \
  runtime/test_runtime
asan-python: SANITIZER := libasan.so
tsan-python: SANITIZER := libtsan.so
asan-python tsan-python: $(VENV)/.editable
	@$(BIN)/cmake --preset $@ -DAXON_PYTHON=$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja
	@$(BIN)/cmake --build --preset $@
	@mkdir -p build/$@/site && cp -r torch_axon build/$@/site
	@$(BIN)/cmake --install build/$@ --component python --prefix build/$@/site
	@cd build/$@ && export PYTHONPATH=site UCX_MEM_EVENTS=n UCX_TLS=^cma,sysv,cuda ASAN_OPTIONS=detect_leaks=0 \
	  TSAN_OPTIONS="ignore_noninstrumented_modules=1 suppressions=$(abspath tools/sanitizers/races.txt)" \
	  LD_PRELOAD="$$(g++ -print-file-name=$(SANITIZER)) $$(g++ -print-file-name=libstdc++.so)" && \
	  $(BIN)/python -c 'from torch_axon._native import load; assert "/$@/" in load().__file__' && \
	  $(BIN)/python -m pytest -c ../../pyproject.toml --rootdir ../.. -k "not 3ranks and not 4ranks" \
	    $(SANITIZED_TESTS:%=../../tests/python/%.py)

# Fuzzes every parser of data from outside. `make test` replays the committed inputs, too.
fuzz: $(VENV)/.installed
	@$(BIN)/cmake --preset fuzz -DAXON_PYTHON=$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja
	@$(BIN)/cmake --build --preset fuzz
	@$(BIN)/python tools/fuzz.py build/fuzz --runs $(FUZZ_RUNS)

# Counts the instructions of an 8-byte all_reduce with valgrind, independent of the machine's load. Fails if a change
# adds more than 2 %.
instructions: $(VENV)/.installed
	@$(BIN)/cmake --preset release -B build/instructions -DAXON_CUDA=OFF -DCMAKE_CXX_FLAGS=-g \
	  -DAXON_PYTHON=$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja
	@$(BIN)/cmake --build build/instructions --target all_reduce_path
	@$(BIN)/python tools/count_instructions.py build/instructions --history benchmarks/results/instructions.jsonl \
	  $(if $(RECORD),--record)

# Keeps the pins while the .in files allow them; UPGRADE=--upgrade moves all pins to the newest versions.
lock: $(VENV)/.installed
	@$(LOCK) --python-version 3.10 requirements/cuda.in -o requirements/cuda.txt
	@$(LOCK) --python-version 3.10 requirements/torch-2.11.in -o requirements/torch-2.11.txt
	@$(LOCK) --python-version 3.10 requirements/torch-2.14.in -o requirements/torch-2.14.txt
	@$(LOCK) --python-version 3.11 requirements/torch-2.15.in -o requirements/torch-2.15.txt
	@$(LOCK) --python-version 3.10 requirements/docs.in -o requirements/docs.txt
	@$(LOCK) --python-version 3.11 requirements/active_message.in -o requirements/active_message.txt
	@$(LOCK) --python-version 3.11 --no-deps requirements/nixl.in -o requirements/nixl.txt
	@$(LOCK) --python-version 3.11 requirements/one_sided.in -o requirements/one_sided.txt

clean:
	rm -rf build dist *.egg-info torch_axon/_build.py torch_axon/include torch_axon/_C.*.so $(VENV)/.editable

# Runs every time, because Ninja finds what is out of date.
build: $(TOOLCHAIN)
	@$(BUILD) $(BIN)/python setup.py -q build_ext --inplace

# An editable install, for the entry points that torch looks up.
$(VENV)/.editable: pyproject.toml setup.py | build
	@$(BUILD) $(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.installed: requirements/torch-$(TORCH).txt | host
	@echo "Installing the pinned wheels into $(VENV): some 3 GB, so the first time takes minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --require-hashes -r $<
	@touch $@

$(VENV)/.docs: requirements/docs.txt | $(VENV)/.installed
	@$(PIP_INSTALL) --require-hashes -r $<
	@touch $@

$(CUDA)/.installed: requirements/cuda.txt | $(VENV)/.installed
	@rm -rf $(CUDA)
	@$(PIP_INSTALL) --require-hashes --no-deps --target $(CUDA) -r $<
	@touch $@

host:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there: install Python 3.10 or newer, or make PYTHON=…"; exit 1; }
	@$(PYTHON) tools/check_host.py $(if $(filter 1,$(TESTS)),--tests) $(if $(filter fuzz,$(MAKECMDGOALS)),--fuzz) \
	  $(if $(filter-out file,$(origin PYTHON)),--environment $(VENV))
