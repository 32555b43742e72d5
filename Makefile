# Needs Python 3.11 or newer, make and gcc; everything else goes into .venv.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
# Two spinning OpenMP threads can stall each other on small machines.
export OMP_WAIT_POLICY ?= PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: k2vv test lint format clean

# The main job: the bundled model, free against constrained. ARGS="--model ... --limit 40" to vary.
k2vv: $(VENV)/.run
	$(RUN) -m eval.k2vv $(ARGS)

# A process a core, one thread each; a file's tests share what they compile.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n auto --dist loadfile $(ARGS)

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

format: $(VENV)/.dev
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[eval,gguf]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.run
