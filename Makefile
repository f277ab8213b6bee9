# `make` alone lists the targets. All of them work in .venv, which they make when it is missing.

PYTHON ?= python3
JOBS ?= 2
FIX ?= stream-sync
NAME ?=
ARGS ?=
DEEPSPEED ?=
STUDIES ?=
SEED ?= $(shell date +%Y%m%d)

VENV := .venv
BIN := $(VENV)/bin
READY := ready
# What is in it is compared, and no times (tools/environment.py). Any Python 3 can say that, also the environment's own.
ENVIRONMENT = "$(or $(wildcard $(BIN)/python),$(PYTHON))" tools/environment.py
BROWSER := .browser/.ready
PIP := $(BIN)/python -m pip install -qq --no-input --disable-pip-version-check --constraint requirements.txt

# The public programs' packages lie in an environment on top of the set-up's. In that, transformers would import their
# torchvision, whose operators are CUDA's.
REACH := $(VENV)/reach
PACKAGES := import sysconfig; print(sysconfig.get_path('purelib'))
BELOW := import sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')

# By files, in the order in which they are collected (tests/scheduling.py). They start many interpreters, which keep what
# they compile, though the environment says that they should not: else that takes a minute in all.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder --hypothesis-profile=ci

DEFAULT := not wide and not release and not ray and not package and not index and not real_build

# What `make test` leaves out: papers/, and our own sharding engine, with which the second paper is reproduced.
PAPERS := tests/papers tests/sharding

LINT := $(BIN)/ruff check . && $(BIN)/lint-imports --no-logo --no-cache && $(BIN)/vulture && $(BIN)/python tools/budget.py && $(BIN)/python tools/prose.py

# Sums must not depend on the machine's cores.
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help $(READY) $(VENV)/set-up setup repro-unstable repro-fixed compare fuzz dry sweep why memory network throughput placements paper paro reviewers releases catalogue test test-wide test-papers test-all test-nightly test-other-processor test-releases test-anywhere test-real-build test-sanitized test-ray test-triton wheel test-wheel lint docs results reach peers bench mutants mutants-every clean distclean
.NOTPARALLEL:

help: ## List the targets, and the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-21s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  NAME=...  name of the run's folder under runs/ (a run of that name is replaced)"
	@echo "  ARGS=...  further options, for example ARGS='--steps 12 --model falcon'"
	@echo "  DEEPSPEED=...  for repro-unstable and repro-fixed: another release, as it was released (0.13.4, 0.13.5)"
	@echo "  SCENARIO=...  for fuzz: hpz, hpz-short, hpz-long, hpz-falcon, hpz-accumulation, zero3 or main"
	@echo "  FIX=...   for repro-fixed: stream-sync, event or device-sync;  JOBS=... for test: processes (2)"
	@echo
	@echo "Commands: $(BIN)/streamrace COMMAND (or python, after: . $(BIN)/activate); --help tells more"
	@"$(PYTHON)" -m streamrace.repro.commands.table

setup: $(READY) ## Make the virtual environment and install what is pinned (once; a minute or two)
	@echo "setup: $(VENV) is ready"

repro-unstable: $(READY) ## Stock DeepSpeed without its one synchronisation: the race and its damage
	@$(BIN)/streamrace run $(if $(DEEPSPEED),--deepspeed $(DEEPSPEED),--fix none) --name $(or $(NAME),unstable) --overwrite --expect unstable $(ARGS)

repro-fixed: $(READY) ## The same with FIX: nothing is found
	@$(BIN)/streamrace run $(if $(DEEPSPEED),--deepspeed $(DEEPSPEED),--fix $(FIX)) --name $(or $(NAME),fixed) --overwrite --expect clean $(ARGS)

compare: $(READY) ## Both runs, side by side
	@$(BIN)/streamrace compare --name $(or $(NAME),compare) --overwrite $(ARGS)

fuzz: $(READY) ## Replay hpZ without its fix under many timings; ends with the smallest one that goes wrong
	@$(BIN)/streamrace fuzz $(or $(SCENARIO),hpz) $(ARGS)

dry: $(READY) ## Rehearse a full-size job as rank 0 of many: races, step time, memory (ARGS='--model llama-2-70b ...')
	@$(BIN)/streamrace dry --name $(or $(NAME),dry) --overwrite $(ARGS)

memory: $(READY) ## The cost of hpZ's secondary copy: dry runs of 7B to 70B and the formula; table and picture
	@$(BIN)/streamrace memory --name $(or $(NAME),memory) --nodes 8 --checkpointing --overwrite $(ARGS)

sweep: $(READY) ## Where the race shows and where hpZ pays: 9 networks x 6 micro-batches of a 7B model; table and pictures
	@$(BIN)/streamrace sweep --name $(or $(NAME),sweep) --nodes 8 --checkpointing --overwrite $(ARGS)

why: $(READY) ## Which assumption decides whether the race shows: the users' setting, with one change at a time
	@$(BIN)/streamrace why --name $(or $(NAME),why) --overwrite $(ARGS)

network: $(READY) ## Collectives: times that nccl-tests reported, and those of our network model; tables (seconds)
	@$(BIN)/python -m papers network --name $(or $(NAME),network) --overwrite $(ARGS)

throughput: $(READY) ## Published step times of A100 and H100 runs, and those of dry runs, side by side (some fifteen minutes)
	@$(BIN)/python -m papers throughput --name $(or $(NAME),throughput) --overwrite $(ARGS)

paper: $(READY) ## The papers' claims and our results, side by side (several minutes)
	@$(BIN)/python -m papers paper --name $(or $(NAME),paper) --overwrite $(ARGS)

paro: $(READY) ## PaRO's strategies, run live and compared with DDP and their formulas (ARGS=--paper: full size, with the paper's figures)
	@$(BIN)/python -m papers paro --overwrite $(ARGS)

reviewers: $(READY) ## Experiments that the papers' reviewers asked for: held-out loss, scale, lower bound, failures (some minutes)
	@$(BIN)/python -m papers reviewers --name $(or $(NAME),reviewers) --overwrite $(ARGS)

placements: $(READY) ## Every place for hpZ's synchronisation: race-free or not, and its cost
	@$(BIN)/streamrace placements --nodes 8 --checkpointing $(ARGS)

releases: $(READY) ## One scenario under eleven DeepSpeed releases, unmodified: race, stale, uncovered or clean
	@$(BIN)/streamrace releases $(ARGS)

catalogue: $(READY) ## Known stream bugs, each in an affected and in a fixed release: race, harm, witness (ARGS='ds5059 --torch')
	@$(BIN)/streamrace catalogue --overwrite $(ARGS)

# mypy takes a minute the first time: beside the tests, as these take a while to use both cores, and at their end.
test: $(READY) $(BROWSER) ## Lint, types, and the tests that a change must pass: every claim at least once (ARGS go to pytest)
	@$(LINT)
	@$(BIN)/mypy & types=$$!; trap 'kill $$types 2> /dev/null' EXIT INT TERM; \
	    $(PYTEST) $(PAPERS:%=--ignore=%) -m "$(DEFAULT)" $(ARGS); tests=$$?; \
	    wait $$types || { echo "make test: mypy found what is told above ('make lint' tells it again)" >&2; exit 1; }; \
	    exit $$tests

# Another quarter each day, so that none of them fails for long before somebody knows.
PART ?= $(shell expr `date +%s` / 86400 % 4)
test-wide: $(READY) $(BROWSER) ## A quarter of the wide tests, a different one each day (PART=0 to 3, or PART=all)
	@$(PYTEST) -m "wide and not release and not ray and not package and not index and not real_build" $(if $(filter all,$(PART)),,--part $(PART)/4) $(ARGS)

test-papers: $(READY) ## Tests that `make test` leaves out: the studies of both papers (papers/), and our own sharding engine
	@$(PYTEST) -m "$(DEFAULT)" $(PAPERS) $(ARGS)

test-all: lint wheel $(BROWSER) ## Lint, then all tests: also the wide ones, the papers', other releases (into the cache), torch's CUDA build, Ray and Triton (installed)
	@$(PIP) --requirement requirements-ray.txt --requirement requirements-triton.txt
	@$(PYTEST) $(ARGS)

test-nightly: $(READY) $(BROWSER) ## The wide tests and the papers', with twenty times as many examples, new ones each time (SEED=... repeats them)
	@echo "make test-nightly SEED=$(SEED)"
	@$(PIP) --requirement requirements-triton.txt
	@$(PYTEST) -m "not release and not ray and not package and not index and not real_build" --hypothesis-profile=nightly --hypothesis-seed=$(SEED) $(ARGS)

# `test`, and every process that a test starts, inherits the pretence. tests/other_processor/ is Python's part of it.
test-other-processor: export PYTHONPATH := $(CURDIR)/tests/other_processor
test-other-processor: export ATEN_CPU_CAPABILITY := avx2
test-other-processor: export ONEDNN_MAX_CPU_ISA := AVX2
test-other-processor: export MKL_CBWR := AUTO
test-other-processor: export NPY_DISABLE_CPU_FEATURES := X86_V3 X86_V4 AVX512_ICL
test-other-processor: test ## The same as on another processor: other kernels, fp16 without hardware support, one core (or three)

test-releases: $(READY) ## The tests that install other DeepSpeed releases (into the user's cache, once)
	@$(PYTEST) -m "release and not wide" $(ARGS)

test-anywhere: $(READY) ## From a clone to a verdict with the package index alone (Python 3.13, or PYTHON=...; some minutes)
	@ANYWHERE_REQUIRED=1 ANYWHERE_PYTHON=$(if $(filter file,$(origin PYTHON)),,"$(PYTHON)") $(BIN)/python -m pytest -m index tests/anywhere $(ARGS)

# Made before the tests: else each of their processes would wait while one of them downloads.
test-real-build: $(READY) ## The simulated GPU beside torch's real CUDA build over fake CUDA libraries (530 MB download; some minutes)
	@$(BIN)/python -m tests.real_build.building
	@$(PYTEST) -m real_build tests/real_build $(ARGS)

test-sanitized: $(READY) ## The simulated GPU's C++ part under AddressSanitizer and UndefinedBehaviorSanitizer (some minutes)
	@$(PYTEST) tests/device/test_sanitized.py $(ARGS)

test-ray: $(READY) ## The test of a campaign on Ray workers (installs Ray)
	@$(PIP) --requirement requirements-ray.txt
	@$(BIN)/python -m pytest -m ray $(ARGS)

test-triton: $(READY) ## The tests of Triton kernels (installs Triton, 1 GB; where it is, make test runs them, too)
	@$(PIP) --requirement requirements-triton.txt
	@$(PYTEST) -m "triton and not wide" $(ARGS)

reach: $(READY) ## Train with 131 public programs on the simulated GPU (installs their packages, 2 GB; a quarter of an hour; ARGS='trl timm')
	@$(BIN)/python -m venv --without-pip $(REACH)
	@$(BIN)/python -c "$(BELOW)" > "$$($(REACH)/bin/python -c "$(PACKAGES)")/below.pth"
	@$(PIP:$(BIN)/%=$(REACH)/bin/%) --no-deps --requirement requirements-reach.txt
	@$(REACH)/bin/python -m benchmarks.reach $(ARGS)

peers: $(READY) ## Run tests of torch and DeepSpeed on the simulated GPU (downloads them, 30 MB; half an hour; ARGS=fsdp2)
	@$(BIN)/python -m benchmarks.peers $(ARGS)

# Not isolated: setuptools is there, pinned, so nothing is fetched. What an earlier build left would be packed again, and
# pytest would take an egg-info for a plugin's, and rewrite all of ours.
wheel: $(READY) ## Build the package: dist/*.whl, without a network
	@rm -rf build/lib build/bdist.* dist
	@$(BIN)/python -m pip wheel -q --no-input --disable-pip-version-check --no-index --no-deps --no-build-isolation --wheel-dir dist .
	@rm -rf build/lib build/bdist.* *.egg-info
	@ls dist/*.whl

test-wheel: wheel ## Install the wheel outside the checkout, and use it there with each of its extras
	@$(BIN)/python -m pytest -m package tests/package $(ARGS)

# The tests of pages open them in a browser, which comes from npm with all the libraries it needs.
$(BROWSER): tests/pages/package.json tests/pages/package-lock.json tests/pages/unpack.mjs | $(READY)
	@echo "setup: a headless browser for the tests of pages"
	@mkdir -p .browser
	@cp tests/pages/package.json tests/pages/package-lock.json tests/pages/unpack.mjs .browser/
	@PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --prefix .browser --ignore-scripts --no-audit --no-fund --loglevel=error > /dev/null
	@cd .browser && TMPDIR="$(CURDIR)/.browser" "$(CURDIR)/$(BIN)/node" unpack.mjs > /dev/null
	@touch $@

lint: $(READY) ## Style (ruff), allowed imports (import-linter), unused code (vulture), lines (tools/budget.py), words (tools/prose.py), types (mypy)
	@$(LINT)
	@$(BIN)/mypy

docs: $(READY) ## Build the pages into site/; they open without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

results: $(READY) ## Run the studies behind the pages' tables again (an hour and more; STUDIES='sweep memory' for some)
	@$(BIN)/python docs/collect.py $(STUDIES)

bench: $(READY) ## Measure speed and memory against the limits; ARGS select rows
	@$(BIN)/python -m benchmarks $(ARGS)

mutants: $(READY) ## Put small errors into engine, device and replay, one at a time: the tests must notice each (40 minutes)
	@$(BIN)/python -m mutants --jobs $(JOBS) $(ARGS)

mutants-every: $(READY) ## Every small change that mutmut makes in detectors/order (installs it; half an hour; resumes where it was stopped)
	@$(PIP) --requirement requirements-mutants.txt
	@$(BIN)/python -m mutants.every --jobs $(JOBS) $(ARGS)

clean: ## Remove the runs
	rm -rf runs

distclean: clean ## Remove the virtual environment and all caches too
	@[ -L $(VENV) ] || $(ENVIRONMENT) ours "$(VENV)"
	rm -rf $(VENV) .browser .releases .real-build build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that this set-up did not make is never changed: a sentence says what to do.
$(READY):
	@command -v "$(or $(wildcard $(BIN)/python),$(PYTHON))" > /dev/null || { echo "There is no '$(PYTHON)' here: run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(ENVIRONMENT) ready "$(VENV)" || { [ $$? = 1 ] && $(MAKE) --no-print-directory $(VENV)/set-up; }

# DeepSpeed's build imports torch, and would fetch another one if it were isolated: so torch goes first, alone. pip's is a
# CUDA build where nobody has configured another index: it becomes a CPU build on the way (streamrace/device/torches/).
$(VENV)/set-up:
	@command -v "$(PYTHON)" > /dev/null || { echo "There is no '$(PYTHON)' here: run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.platform != "linux")' || { \
	    echo "The simulated GPU runs on Linux: use a Linux machine, a virtual one or a container (on Windows: WSL)" >&2; \
	    exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or newer is needed, and '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1): run make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; }
	@"$(PYTHON)" tools/environment.py begin "$(VENV)"
	@[ -x $(BIN)/python ] || { echo "setup: virtual environment in $(VENV)"; "$(PYTHON)" -m venv $(VENV); } || { rm -rf $(VENV); exit 1; }
	@$(BIN)/python -m streamrace.device.torches --constraint requirements.txt
	@echo "setup: DeepSpeed, transformers and the other pinned packages (a minute or two)"
	@$(PIP) setuptools wheel py-cpuinfo ninja
	@$(PIP) --no-build-isolation --requirement requirements-dev.txt
	@! ls -d $(VENV)/lib/python*/site-packages/stream_races-*.dist-info > /dev/null 2>&1 || $(BIN)/python -m pip uninstall -qq -y stream-races # its name of before, whose plugin is gone
	@$(PIP) --no-build-isolation --no-deps --editable .
	@echo "setup: the simulated GPU (a quarter of a minute of a C++ compiler)"
	@$(BIN)/python -m streamrace.device.build
	@echo "setup: the engine of happens-before (some seconds of it)"
	@$(BIN)/python -m streamrace.detectors.native
	@echo "setup: what orders and numbers the timings of a replay (two seconds of it)"
	@$(BIN)/python -m streamrace.replay.native
	@"$(PYTHON)" tools/environment.py done "$(VENV)"
