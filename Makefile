# Needs Python 3.11 or newer, make and gcc; everything else goes into .venv.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
# Public data sets that some results are measured on; none is needed to use or test the project.
SHARED ?= ../shared
# Two spinning OpenMP threads can stall each other on small machines.
export OMP_WAIT_POLICY ?= PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: k2vv test lint format notebooks clean

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

# Run all of them again, in place. To be done, and read, when results/ changes.
notebooks: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(RUN) -m pytest --nbmake --overwrite notebooks
	$(RUN) -m eval.notebooks notebooks/*.ipynb

clean:
	rm -rf $(VENV) build *.egg-info

# Every artefact of results/ that a CPU can make, by the command that results/README.md lists. Each
# is a target of its own: `make results/kernels/audit.csv`, or `make results/k2vv` for a folder.
# Nothing is up to date by its age, since it depends on the whole code. Not here: the training curve,
# which belongs to the shipped weights, and times on a GPU.
K2VV := $(addprefix results/k2vv/,\
    nano smollm2-135m bfcl-smollm2-135m bfcl-required-smollm2-135m)
DECODING := $(addprefix results/decoding/,smollm2-135m qwen2.5-0.5b)
KERNELS := $(addprefix results/kernels/,\
    audit.csv traffic.csv traffic_heads.csv bench_cpu.csv bench_heads_cpu.csv)
JSON_SCHEMA := $(addprefix results/json_schema/,maskbench_dev test_suite)
FOLDERS := results/k2vv results/decoding results/kernels results/json_schema
RESULTS := $(K2VV) $(DECODING) $(KERNELS) $(JSON_SCHEMA) results/grammar/bench.csv \
    results/nano/curve.png results/figure.png
.PHONY: results $(FOLDERS) $(RESULTS)

# The figure last: it draws the runs.
results: $(RESULTS)
results/k2vv: $(K2VV)
results/decoding: $(DECODING)
results/kernels: $(KERNELS)
results/json_schema: $(JSON_SCHEMA)

# Of a run's folder, what is kept; rows of results, which repeat every request, are not.
define keep_run
	for mode in free constrained; do \
	    mkdir -p $@/$$mode && cp $(1)/$$mode/summary.json $(1)/$$mode/run.json $@/$$mode/ || exit 1; \
	done
	cp $(1)/comparison.json $(1)/report.md $(1)/*.png $@/
endef

# --overwrite, since a run that is done would be taken for this one.
results/k2vv/nano: $(VENV)/.run
	$(RUN) -m eval.k2vv --overwrite
	$(call keep_run,runs/k2vv)

results/k2vv/smollm2-135m: $(VENV)/.run
	$(RUN) -m eval.k2vv --model smollm2-135m --limit 40 --tool-choice required \
	    --output runs/smollm2 --overwrite
	$(call keep_run,runs/smollm2)

BFCL := irrelevance simple_python live_simple parallel multiple
results/k2vv/bfcl-smollm2-135m: $(VENV)/.run $(SHARED)/data/bfcl
	mkdir -p runs/bfcl_sets
	for set in $(BFCL); do \
	    ln -sf $(abspath $(SHARED))/data/bfcl/$$set.* runs/bfcl_sets/ || exit 1; \
	done
	$(RUN) -m eval.k2vv runs/bfcl_sets --model smollm2-135m --per-group 41 --max-tokens 64 \
	    --finish-in-budget --threads 2 --output runs/bfcl --overwrite
	$(call keep_run,runs/bfcl)

results/k2vv/bfcl-required-smollm2-135m: $(VENV)/.run $(SHARED)/data/bfcl
	mkdir -p runs/bfcl_calls
	for set in $(filter-out irrelevance,$(BFCL)); do \
	    ln -sf $(abspath $(SHARED))/data/bfcl/$$set.* runs/bfcl_calls/ || exit 1; \
	done
	$(RUN) -m eval.k2vv runs/bfcl_calls --model smollm2-135m --per-group 51 --tool-choice required \
	    --max-tokens 96 --finish-in-budget --threads 1 --batch-size 16 --output runs/bfcl_required \
	    --overwrite
	$(call keep_run,runs/bfcl_required)

results/decoding/smollm2-135m: $(VENV)/.dev
	$(RUN) -m eval.decoding --model smollm2-135m --threads 2 --rounds 3 --script answers --tokens 64 \
	    --output $@

results/decoding/qwen2.5-0.5b: $(VENV)/.dev
	$(RUN) -m eval.decoding --shape qwen2.5-0.5b --threads 2 --rounds 2 --tokens 64 --no-prefixes \
	    --ways free dense masked forced mixed generate generate_xgrammar --output $@

results/kernels/audit.csv: $(VENV)/.run
	$(RUN) -m kernels.audit --output $@

results/kernels/traffic.csv: $(VENV)/.run
	$(RUN) -m kernels.traffic --output $@

results/kernels/traffic_heads.csv: $(VENV)/.run
	$(RUN) -m kernels.traffic_heads --output $@

results/kernels/bench_cpu.csv: $(VENV)/.run
	$(RUN) -m kernels.bench --device cpu --output $@

results/kernels/bench_heads_cpu.csv: $(VENV)/.run
	OMP_NUM_THREADS=1 $(RUN) -m kernels.bench --op masked_logits --device cpu --repeats 7 --output $@

results/grammar/bench.csv: $(VENV)/.dev
	$(RUN) -m grammar.bench --output $@

# Exit status 1: some engine let invalid text through, which is what is counted.
results/json_schema/maskbench_dev: $(VENV)/.dev $(SHARED)/data/maskbench/dev.jsonl.gz
	$(RUN) -m eval.json_schema $(SHARED)/data/maskbench/dev.jsonl.gz \
	    --engine ours --engine xgrammar --engine llguidance --output runs/maskbench_dev || test $$? -eq 1
	mkdir -p $@ && cp runs/maskbench_dev/summary.json $@/

results/json_schema/test_suite: $(VENV)/.dev $(SHARED)/data/json_schema_test_suite
	$(RUN) -m eval.json_schema $(SHARED)/data/json_schema_test_suite --output runs/suite
	mkdir -p $@ && cp runs/suite/summary.json $@/

$(SHARED)/data/%:
	@echo "$@ is not here; say where the data sets are: make SHARED=..." >&2; exit 1

results/nano/curve.png: $(VENV)/.run
	$(RUN) -m eval.nano_curve results/nano/curve.csv

results/figure.png: $(VENV)/.run
	$(RUN) -m eval.readme_figure --output $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[eval,gguf]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.run
