# `make census` and `make test` are the two commands a newcomer needs; both build their own venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: census test lint docs clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

census: $(VENV)/.installed
	$(BIN)/minfer pull smollm2-135m
	$(BIN)/census run smollm2-135m

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/mypy

# two workers, a file to one of them; BLAS threads of both would fight over the cores
test: lint
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=12

docs: $(VENV)/.installed
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/figures.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
