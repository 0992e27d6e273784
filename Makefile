# Each target creates the virtual environment that it needs, in $(VENV), from its lock file, requirements/NAME.lock, and
# again only when that changes. `make lock` writes the lock files from pyproject.toml.

# The first suitable Python; use PYTHON=/path/to/python3 for another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# What a lock file names is all that is installed, and each file of it has a hash there. What builds a wheel from sources comes
# from a lock file too (build.lock), so none is built in isolation, for which pip would fetch what it finds.
# Python compiles what is imported; to compile all of it takes a third of the installation.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
LOCKED = $(INSTALL) --require-hashes --no-build-isolation

.PHONY: help demo test suite unstable lint soak consistency fuzz bench pictures format lock native native-clean wheel wheel-test dist binary deb package-test clean

help:
	@echo "make demo  [ARGS='--dir DIR --workers N'] two simulated clusters behind mcproxy"
	@echo "make test  [ARGS='-k name']              lint, then all tests"
	@echo "make suite [PYTHON=P VENV=DIR]           all tests, on another Python in a virtual environment of its own"
	@echo "make unstable [TIMES=5]                  the suite under load, and what did not pass at the first try"
	@echo "make lint                                ruff, mypy, import-linter"
	@echo "make soak  [TIME=1m ARGS='--seed N']     load with faults by chance, and what must hold all the time"
	@echo "make consistency [TIME=30s ARGS='--seed N'] replicas of an aggregate under faults, checked against the members' history"
	@echo "make fuzz  [RUNS=1000000 ARGS='-k name'] hostile input for every parser that strangers reach"
	@echo "make bench [ARGS=...]                    measure against nginx, Go and Twisted; writes bench/RESULTS.md"
	@echo "make pictures                            take the pictures of README.md anew, of the status page and of top"
	@echo "make format                              format the code with ruff"
	@echo "make native [OPT=2 JOBS=2]               compile the data plane in place, with gcc; takes two minutes"
	@echo "make native-clean                        remove that, so that the sources run"
	@echo "make dist                                wheel of the sources, for any Python, and source distribution, in dist/"
	@echo "make wheel                               wheel with the compiled modules, for this Python and machine, in dist/"
	@echo "make wheel-test                          install the wheel of the sources alone, and run it"
	@echo "make binary [LEVEL=19]                   one file with Python and all dependencies, in dist/"
	@echo "make deb                                 a Debian package of the same, in dist/"
	@echo "make package-test [ARGS=...]             build these and test them in empty roots; takes minutes"
	@echo "make lock  [ARGS=--upgrade]              write requirements/*.lock anew, from pyproject.toml"
	@echo "make clean                               remove everything that the other targets created"

demo: $(VENV)/made-for-demo
	@exec $(BIN)/mcproxy demo $(ARGS)

test: lint suite

# With each file's tests in one process, for they share daemons and clusters, and in their order: what takes longest is in
# the middle (tests/e2e), so that no process is left alone with it. A test that fails is tried twice more; one that passes then is
# named at the end (tests/support/unstable.py). Tests marked as slow are a part of .ci/night.
suite: $(VENV)/made-for-test $(VENV)/compiled-tests
	@.ci/tools kubectl chromium redis-server zsh fish systemd-analyze promtool man mandoc jq nginx || echo "make $@: going on without; the tests that need it will fail" >&2
	$(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder --reruns 2 -m "not slow" --durations=15 \
	    --junit-xml .ci/results/suite.xml $(ARGS)

# The suite beside two processes that burn the cores, TIMES times, and how often each test was unstable or failed.
unstable: $(VENV)/made-for-test $(VENV)/compiled-tests
	@.ci/unstable $(or $(TIMES),5) $(MAKE) --no-print-directory VENV=$(VENV)

# Each process of the suite imports all tests, and would compile them at the same time as the others, which takes 30 s.
$(VENV)/compiled-tests: $(VENV)/made-for-test $(shell find tests -name '*.py')
	@ls -d tests/*/ | xargs -P 2 -n 8 $(BIN)/python -m pytest --collect-only >/dev/null 2>&1 || true
	@touch $@

lint: $(VENV)/made-for-test
	$(BIN)/ruff check mcproxy kubesim tests bench man packaging
	$(BIN)/ruff format --check mcproxy kubesim tests bench man packaging
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg

soak: $(VENV)/made-for-test
	$(BIN)/python -m tests.soak --time $(or $(TIME),1m) $(ARGS)

consistency: $(VENV)/made-for-test
	$(BIN)/python -m tests.consistency --time $(or $(TIME),30s) $(ARGS)

fuzz: $(VENV)/made-for-test
	$(BIN)/python -m tests.fuzz --runs $(or $(RUNS),1000000) $(ARGS)

bench: $(VENV)/made-for-test
	@.ci/tools nginx wrk h2load redis-server cc valgrind
	$(BIN)/python -m bench $(ARGS)

pictures: $(VENV)/made-for-test
	@.ci/tools chromium tmux
	$(BIN)/python -m tests.docs.pictures

format: $(VENV)/made-for-test
	$(BIN)/ruff check --fix mcproxy kubesim tests bench man packaging
	$(BIN)/ruff format mcproxy kubesim tests bench man packaging

# The compiled modules, beside their sources; from then on all that runs in this checkout takes them, but with MCPROXY_PURE=1.
OPT ?= 2
JOBS ?= $(shell nproc)
NATIVE = $(BIN)/python packaging/native.py --opt $(OPT) --jobs $(JOBS)

native: $(VENV)/made-for-native
	@.ci/tools cc
	@$(NATIVE)

native-clean:
	find mcproxy -name '*.so' -delete
	rm -f mcproxy__mypyc.*.so mcproxy/compiled-*.txt

dist: $(VENV)/made-for-package
	$(BIN)/hatchling build --directory dist

wheel: $(VENV)/made-for-package $(VENV)/made-for-native
	@.ci/tools cc
	MCPROXY_NATIVE=1 $(BIN)/hatchling build --target wheel --directory dist

# The wheel of the sources in an environment of its own, with what it needs and nothing else.
wheel-test: dist
	rm -rf build/wheel-test
	$(PYTHON) -m venv build/wheel-test
	build/wheel-test/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/run.lock
	build/wheel-test/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
	    "$$(ls -t dist/mcproxy-*-py3-none-any.whl | head -n 1)"
	cd build/wheel-test && bin/mcproxy version && bin/mcproxy check --offline --config $(CURDIR)/etc/mcproxy.yaml

# The interpreter, mcproxy and all that it needs, which binary and Debian package hold.
TREE := build/tree
SOURCES = $(shell find mcproxy kubesim man etc docs systemd packaging schema -type f -not -path '*/__pycache__/*' -not -name '*.so') pyproject.toml README.md CHANGELOG.md
LEVEL ?= 12

$(TREE)/made: $(VENV)/made-for-package $(VENV)/made-for-native requirements/all.lock $(SOURCES)
	@.ci/tools cc strip ldd
	$(BIN)/python packaging/tree.py $(TREE)
	@touch $@

binary: $(TREE)/made
	@.ci/tools cc libzstd.a
	@mkdir -p dist
	$(BIN)/python packaging/binary.py $(TREE) dist $(LEVEL)

deb: $(TREE)/made
	@.ci/tools dpkg-deb
	@mkdir -p dist
	$(BIN)/python packaging/deb.py $(TREE) dist

# A Debian with nothing but what each has, for the tests of the package.
build/debian.tar: packaging/debian.sh
	@.ci/tools debootstrap
	@mkdir -p build
	packaging/debian.sh $@

# In a network namespace of its own, in which nothing but loopback is.
package-test: $(VENV)/made-for-test dist wheel binary deb build/debian.tar
	@.ci/tools cc ip lintian unshare
	@mkdir -p build/test
	unshare --net --mount sh -c 'ip link set lo up && mount -t tmpfs none build/test && \
	    exec $(BIN)/python -m pytest --basetemp build/test/tmp --durations=15 packaging/tests $(ARGS)'

lock:
	@$(MAKE) --no-print-directory VENV=.venv-lock .venv-lock/made-for-lock
	.venv-lock/bin/python packaging/lock.py $(ARGS)

clean: native-clean
	rm -rf .venv .venv-* .tools .ci/results build dist mcproxy.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "mcproxy needs Python 3.11, 3.12 or 3.13: install one, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { echo "$(PYTHON) does not suit: mcproxy needs Python 3.11, 3.12 or 3.13; say another with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install python3-venv (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# urllib3-future, which niquests brings, would take the place of urllib3, on which the kubernetes package is tested.
$(VENV)/made-for-%: requirements/%.lock requirements/build.lock | $(BIN)/python
	$(LOCKED) --requirement requirements/build.lock
	URLLIB3_NO_OVERRIDE=1 $(LOCKED) --no-binary urllib3-future --requirement $<
	$(INSTALL) --no-build-isolation --no-deps --no-index --editable .
	@touch $@

# What writes the lock files, and what builds packages, does not run mcproxy.
$(VENV)/made-for-lock $(VENV)/made-for-package: $(VENV)/made-for-%: requirements/%.lock | $(BIN)/python
	$(LOCKED) --requirement $<
	@touch $@
