# make demo   many seeds of a vLLM engine with multi-turn sessions: a latency table and a picture
# make test   the tests;  make test-all  the slow ones too
# make check  lint and types;  make clean  remove what these made
.PHONY: demo test test-all check clean

VENV := .venv
BIN := $(VENV)/bin

demo: $(VENV)/.demo
	$(BIN)/serqjax run vllm --seeds 0:32 --horizon 200 --warmup 20 --plot results/demo/latency.png

# What XLA compiles in tests (the form for accelerators, kernels) is made in a third of the time at level 0; the results are the same.
test: $(VENV)/.dev
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest -q -n 2 -m "not slow" --durations=15

# also the structures and batch shapes that need a compilation of their own for little news
test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --durations=15

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/pyright

$(VENV)/.demo: pyproject.toml .ci/setup
	@PYTHON="$(PYTHON)" sh .ci/setup $(VENV) demo

$(VENV)/.dev: pyproject.toml .ci/setup
	@PYTHON="$(PYTHON)" sh .ci/setup $(VENV) dev

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache results build dist
