# Two commands do everything on a fresh machine: `make demo` and `make test`. They need Python 3.11 or later and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
export JAX_PLATFORMS ?= cpu

# Big data sets lie beside the project on some machines; elsewhere tests that need them are skipped with a reason.
ifneq ($(wildcard ../shared/data),)
export TACIT_DATA ?= $(abspath ../shared/data)
endif

.PHONY: demo consortium test browser check lint types format docs bench bench-peers audit defaults soak clean

demo: $(VENV)/base
	$(BIN)/tacit run heart-disease

# Four hospitals, two shufflers and a server as processes of their own on this machine: three channels, start to stop.
consortium: $(VENV)/installed
	$(BIN)/python -m experiments.consortium

test: lint types check

# A Chromium for the tests in a browser: one that is there, or Debian's where this user may install it. Without one they
# are skipped, and the last line of the tests says so. `make test INSTALL=no` installs nothing outside of the folder.
INSTALL ?= yes
APT := apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o DPkg::Lock::Timeout=60
NAMES := chromium chromium-browser google-chrome google-chrome-stable chrome-headless-shell
browser:
	@found=$$TACIT_CHROMIUM; for name in $(NAMES); do found=$${found:-$$(command -v $$name)}; done; [ -n "$$found" ] \
	  || { [ "$(INSTALL)" = yes ] && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	  && echo "Installing Chromium, for the tests in a browser." && $(APT) update > /dev/null 2>&1 \
	  && DEBIAN_FRONTEND=noninteractive $(APT) install --yes --no-install-recommends chromium fonts-liberation \
	  > /dev/null 2>&1; } || echo "No Chromium on this machine: the tests in a browser will be skipped."

# A file's tests stay together, so that what they share (a consortium of processes, for one) is started once.
check: $(VENV)/installed browser
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation site, in build/site; it needs no network, and neither do its readers.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

# Private against non-private rounds, tapped against materialised gradients, memory, growth, shuffled reports against
# drawing numbers, noise of a real silo's door against normals, the door against that of version 0.1, a million silos;
# ratios in one run.
bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.reports
	$(BIN)/python -m benchmarks.noise
	$(BIN)/python -m benchmarks.door
	$(BIN)/python -m benchmarks.silos

# Tacit beside Opacus, torch.func, jax-privacy, Flower and others, in an environment of its own; writes
# results/benchmarks/peers.md; stopped, it goes on where it was. `make bench-peers PEERS=--quick` shows in a few minutes that all works.
bench-peers: .venv-peers/installed
	PYTHONPATH=src:. .venv-peers/bin/python -m benchmarks.peers $(PEERS)

.venv-peers/installed: benchmarks/peers/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

# A hundred thousand attacks on every kind of release of every algorithm, at the door of a real silo; writes
# results/audit, with how long it took: two to three hours on two cores. Stopped, it goes on where it was.
audit: $(VENV)/installed
	$(BIN)/python -m experiments.audit --trials 100000 --seed 0 --jobs 2

# What the defaults lose against the best of hundreds of settings, on public data sets; writes results/defaults. Stopped,
# it goes on where it was.
defaults: $(VENV)/installed
	$(BIN)/python -m experiments.defaults

# Kill daemons at random points; send them a hundred thousand hostile messages of a proposer, and as many forgeries; hold
# twenty thousand answers to hostile broadcasts, and six hundred shuffled sums of such, against their clips; price two
# thousand extreme schedules; fifty daemons at once; kill every party of a consortium over Flower, and cut its network
# (the last needs root).
soak: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[soak]"
	$(BIN)/python -m soak.kill --times 200
	$(BIN)/python -m soak.fuzz --messages 100000
	$(BIN)/python -m soak.forge --forgeries 100000
	$(BIN)/python -m soak.bytes --runs 50000
	$(BIN)/python -m soak.attack --answers 20000 --seed 0
	$(BIN)/python -m soak.sums --sums 600 --seed 0
	$(BIN)/python -m soak.accountant
	$(BIN)/python -m soak.load --silos 50 --rounds 20
	$(BIN)/python -m soak.deployment --kills 12 --cuts 3

# What users have; and with the tools of developers.
$(VENV)/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed: $(VENV)/base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .venv-peers build dist runs .mypy_cache .ruff_cache .hypothesis
