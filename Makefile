# muster: `make help` lists the targets. Needs Python >= 3.11 and a package registry for the first `make setup`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first interpreter that runs and is new enough: a version manager's shim may exist and fail. `make PYTHON=...` overrides.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

BIN   := .venv/bin
PROTO := .venv-proto/bin
SITE  := .venv-site/bin
# Done once for each state of the lock and of pyproject.toml.
READY       := .venv/.ready
PROTO_READY := .venv-proto/.ready
SITE_READY  := .venv-site/.ready
# Creates the processes of jobs; built in less than a second.
PROGRAM := supervisors/launch/creation/muster-spawn

# With a wheelhouse the tests on a card have an environment of their own, made of that alone.
ifneq ($(wildcard wheelhouse/requirements.txt),)
GPU_READY  := .venv-gpu/.ready
GPU_PYTHON := .venv-gpu/bin/python
else
GPU_READY  := $(READY) $(PROGRAM)
GPU_PYTHON := $(BIN)/python
endif

MINDSPORE_READY := .venv-mindspore/.ready
# Another one: make test-msrun MINDSPORE='mindspore==2.9.*' after make clean.
MINDSPORE ?= mindspore==2.7.*

# proto/muster holds links to agent, supervisors and probes.
CODE := $(wildcard proto/muster tests benchmarks examples scripts hatch_build.py)

.PHONY: help setup run test test-slow chaos test-system test-ansible test-gpu record-gpu wheelhouse image release check-release test-msrun fuzz lint format proto proto-baseline check-proto docs check-docs docs-test site recordings corpus corpus-acted bench bench-compare bench-growth soak lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

setup: $(READY) $(PROGRAM)  ## .venv with the locked dependencies and this project, editable

run: $(READY) $(PROGRAM)  ## the quick start: a daemon and a small job
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/run.sh

# PYTHONDONTWRITEBYTECODE: with it, each daemon of a test compiles all of its modules again.
test test-slow chaos test-gpu: export PYTHONDONTWRITEBYTECODE :=
# Tests fork next to gRPC's threads; its handlers for that are for programs that go on to use it.
test test-slow chaos test-gpu: export GRPC_ENABLE_FORK_SUPPORT := 0
# Twice as many workers as cores: most tests wait for processes more than they compute. The slow ones wait still more, so
# that beside them one worker more keeps the cores busy.
PYTEST_WORKERS ?= $(shell echo $$(( 2 * $$(nproc) + $(if $(SLOW),1,0) )))
PYTEST := $(BIN)/python -m pytest -q -n $(PYTEST_WORKERS) --dist worksteal
# Each worker collects all tests. What pytest makes of their files lies beside them from then on, so in a new checkout it is
# made once, on two cores, and not by each of the workers. An error here is told by the tests themselves.
COLLECTED := .venv/collected
$(COLLECTED): $(READY)
	@printf '%s\n' tests/unit/agent 'tests/unit --ignore=tests/unit/agent' 'tests --ignore=tests/unit --ignore=tests/system --ignore=tests/gpu' \
		| xargs -P 3 -I ARGS sh -c '$(BIN)/python -m pytest --collect-only -q ARGS >/dev/null 2>&1 || :'
	@touch $@

test: $(READY) $(PROGRAM) $(COLLECTED)  ## the tests, but for the slow ones; SLOW=1: all, as CI; PYTEST_ARGS="-k name -x" selects
	@$(PYTEST) --ignore=tests/system --ignore=tests/gpu $(if $(SLOW),,-m "not slow and not chaos") $(PYTEST_ARGS)

test-slow: $(READY) $(PROGRAM) $(COLLECTED)  ## tests of more than four seconds, and chaos: MUSTER_CHAOS_POINTS says how many points
	@$(PYTEST) --ignore=tests/system --ignore=tests/gpu -m "slow or chaos" $(PYTEST_ARGS)

chaos: $(READY) $(PROGRAM)  ## two faults at once, again and again: POINTS=1000; ONLY=17: one point; SEED, FAULTS: which ones
	@MUSTER_CHAOS_POINTS=$(or $(POINTS),100) $(if $(SEED),MUSTER_CHAOS_SEED=$(SEED)) $(if $(ONLY),MUSTER_CHAOS_ONLY=$(ONLY)) $(if $(FAULTS),MUSTER_CHAOS_FAULTS='$(FAULTS)') \
		$(BIN)/python -m pytest -q -n $(if $(ONLY),0,auto) --dist worksteal \
		$(if $(ONLY),tests/chaos/test_pairs.py::test_pair,tests/chaos) $(PYTEST_ARGS)

test-system: $(READY) $(PROGRAM)  ## under a real systemd, in real containers; needs root, debootstrap, systemd-nspawn, buildah and podman
	@$(BIN)/python -m pytest -q tests/system $(PYTEST_ARGS)

test-ansible: $(READY) $(PROGRAM)  ## the Ansible role, in two such containers
	@$(BIN)/python -m pip install -q -r examples/ansible/requirements.txt
	@MUSTER_TEST_ANSIBLE=1 $(BIN)/python -m pytest -q tests/system/packages/test_ansible.py $(PYTEST_ARGS)

test-gpu: $(GPU_READY)  ## what only a machine with an NVIDIA card shows; needs a driver and no network once `make wheelhouse` was run
	@$(GPU_PYTHON) -m pytest -q -p no:cacheprovider tests/gpu $(PYTEST_ARGS)

# The record lies in the checkout, and the fakes replay it: tests/fakes/replay.py.
record-gpu: $(GPU_READY)  ## what the driver of this machine's card answers, byte for byte, as a file: RECORD=name
	@$(GPU_PYTHON) -m scripts.record_gpu tests/fixtures/nvml/$(or $(RECORD),$(error RECORD is not given: make record-gpu RECORD=h100-580.159.04)).jsonl

wheelhouse: $(READY) $(PROGRAM)  ## for `make test-gpu` on a machine without a network: FOR=3.12 is its Python, MACHINE=aarch64
	@$(BIN)/python -m scripts.wheelhouse wheelhouse $(if $(FOR),--python $(FOR)) $(if $(MACHINE),--machine $(MACHINE))

image: $(READY) $(PROGRAM)  ## a container image, by buildah: IMAGE_ARGS="--base IMAGE --tool podman", --ascend
	@$(BIN)/python -m scripts.image $(IMAGE_ARGS)

# RELEASE_ARGS="--python 3.11 --python 3.12 --machine x86_64 --machine aarch64 --release 2"
release: $(READY) $(PROGRAM)  ## dist/: wheels, sdist, .deb, .rpm, SBOM, checksums, notes; RELEASE_ARGS="--python 3.12" is the nodes'
	@$(BIN)/python -m scripts.release $(RELEASE_ARGS)

check-release: $(READY) $(PROGRAM)  ## builds all of it again, and compares; with the RELEASE_ARGS of `make release`
	@$(BIN)/python -m scripts.release --check $(RELEASE_ARGS)

test-msrun: $(READY) $(MINDSPORE_READY)  ## the tests of msrun with MindSpore: a download of 800 MB
	@MUSTER_TEST_MSRUN="$(CURDIR)/.venv-mindspore/bin" \
		$(BIN)/python -m pytest -q tests/integration/launch/test_boot_modes.py tests/integration/launch/test_drop_in.py -k 'real and msrun' $(PYTEST_ARGS)

fuzz: $(READY) $(PROGRAM)  ## 100,000 generated calls against a real daemon; MUSTER_FUZZ_CALLS says how many
	@MUSTER_FUZZ_CALLS=$${MUSTER_FUZZ_CALLS:-100000} $(BIN)/python -m pytest -q -s tests/fuzz --timeout 2400 $(PYTEST_ARGS)

lint: $(READY) check-proto check-docs  ## ruff, mypy, import rules, generated code and pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo

format: $(READY)  ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

corpus: $(READY)  ## precision, recall and delay of the hang rule, beside the plain one; CORPUS_ARGS="--seeds 60"
	@$(BIN)/python -m tests.corpus $(CORPUS_ARGS)

corpus-acted: $(READY) $(PROGRAM)  ## the same with real processes under a real daemon, on fake cards, sixty times as fast
	@$(BIN)/python -m tests.corpus --acted $(CORPUS_ARGS)

bench: $(READY) $(PROGRAM)  ## benchmarks beside their peers, then the curves of bench-growth
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks.growth

bench-compare: $(READY)  ## what became slower between two commits: make bench-compare OLD=v0.1.0 NEW=HEAD
	@$(BIN)/python -m benchmarks.compare $(or $(OLD),$(error OLD is not given: make bench-compare OLD=v0.1.0)) $(or $(NEW),HEAD) $(COMPARE_ARGS)

bench-growth: $(READY) $(PROGRAM)  ## how the costs grow with ranks, jobs, followers, cards, processes, ended jobs: curves in docs/concepts/growth
	@$(BIN)/python -m benchmarks.growth

soak: $(READY) $(PROGRAM)  ## everything at once for an hour, and whether anything grows; MUSTER_SOAK_MINUTES says how long
	@$(BIN)/python -m benchmarks.soak --minutes $${MUSTER_SOAK_MINUTES:-60}

# --- environments -----------------------------------------------------------------------------------------------------------

define venv
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 found; say which: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make: Python >= 3.11 is needed, $(PYTHON) is " + sys.version)'
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
endef

$(READY): requirements-dev.lock pyproject.toml
	$(call venv,.venv)
	$(BIN)/python -m pip install -q --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(PROGRAM): $(PROGRAM).c hatch_build.py | $(READY)
	$(BIN)/python hatch_build.py

# grpcio-tools 1.74 holds protobuf below 7, so the generator does not live with the rest.
$(PROTO_READY): requirements-proto.lock
	$(call venv,.venv-proto)
	$(PROTO)/python -m pip install -q --require-hashes -r requirements-proto.lock
	@touch $@

# Its many packages are for nobody's tests.
$(SITE_READY): requirements-site.lock
	$(call venv,.venv-site)
	$(SITE)/python -m pip install -q --require-hashes -r requirements-site.lock
	@touch $@

.venv-gpu/.ready: wheelhouse/requirements.txt
	$(call venv,.venv-gpu)
	cd wheelhouse && ../.venv-gpu/bin/python -m pip install -q --no-index --no-deps --force-reinstall --find-links . --require-hashes -r requirements.txt
	@touch $@

# In a virtual environment of its own: it has its own opinion of numpy and protobuf, and is not for everybody's disk.
$(MINDSPORE_READY):
	$(call venv,.venv-mindspore)
	.venv-mindspore/bin/python -m pip install -q '$(MINDSPORE)'
	@touch $@

# Pins stay unless pyproject.toml rules them out; `make lock LOCK_FLAGS=--upgrade` takes the newest. No registry address gets in.
COMPILE = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" $(LOCK_FLAGS) pyproject.toml

lock: $(READY)  ## write the requirements*.lock files anew
	$(COMPILE) -o requirements.lock
	$(COMPILE) --extra dev -c requirements.lock -o requirements-dev.lock
	$(subst pyproject.toml,,$(COMPILE)) --group proto -o requirements-proto.lock
	$(subst pyproject.toml,,$(COMPILE)) --group site -o requirements-site.lock

# --- generated code ---------------------------------------------------------------------------------------------------------

# $(1): the folder to write into; the code lands in its muster/v1.
define protoc
	$(PROTO)/python -m grpc_tools.protoc -I proto \
		--plugin=protoc-gen-mypy=$(PROTO)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(PROTO)/protoc-gen-mypy_grpc \
		--python_out=$(1) --mypy_out=quiet:$(1) --grpc_python_out=$(1) --mypy_grpc_out=quiet:$(1) proto/muster/v1/*.proto
endef

proto: $(PROTO_READY)  ## generate the code from proto/muster/v1/*.proto
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; $(call protoc,$$tmp); \
	rm -f proto/muster/v1/*_pb2*.py*; cp "$$tmp"/muster/v1/*_pb2*.py* proto/muster/v1/

proto-baseline: $(PROTO_READY)  ## with a release: from now on check-proto refuses changes that break a client of this state
	$(PROTO)/buf build proto --exclude-source-info -o proto/baseline.binpb

check-proto: $(PROTO_READY)  ## buf lint, does nothing break clients, and is the generated code that of the .proto files?
	$(PROTO)/buf lint proto
	$(PROTO)/buf breaking proto --against proto/baseline.binpb
	@tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; mkdir "$$tmp/old"; $(call protoc,$$tmp); \
	cp proto/muster/v1/*_pb2*.py* "$$tmp/old/"; \
	diff -r "$$tmp/old" "$$tmp/muster/v1" || { echo "make: the generated code is stale; run 'make proto'" >&2; exit 1; }

docs: $(READY)  ## write the generated pages of docs/reference/, and the blocking client
	@$(BIN)/python -m scripts.make_reference

check-docs: $(READY)  ## is what `make docs` writes current, and does each link lead somewhere?
	@$(BIN)/python -m scripts.make_reference --check
	@$(BIN)/python -m scripts.check_links

docs-test: $(READY) $(PROGRAM)  ## run the shell commands of the pages and compare what they print; PAGES="docs/get-started.md" selects
	@$(BIN)/python -m scripts.documentation.try_pages $(PAGES)

# NO_MKDOCS_2_WARNING: the theme's advertisement, which is no warning about these pages.
site: $(SITE_READY) docs  ## build/site: the documentation as a web site that needs no server and no network; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(SITE)/python -m mkdocs build
	@echo "build/site/index.html"

recordings: $(READY) $(PROGRAM)  ## docs/pictures: sessions at a terminal and reports, from real jobs; needs chromium
	@$(BIN)/python -m scripts.documentation.recordings
	@$(BIN)/python -m scripts.documentation.report_pictures

clean:  ## remove environments, caches and build output
	rm -rf $(PROGRAM) .venv .venv-proto .venv-site .venv-mindspore .venv-gpu wheelhouse build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
