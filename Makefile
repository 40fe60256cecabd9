# make fit: AdaFed beside FedAvg on real digits. make test: what is run at every step; make test-all: the rest. All set up .venv first.
# make federation: a server and three sites as processes of their own, over Flower (Python 3.11 or later).
PYTHON ?= python3
BIN := .venv/bin

.PHONY: fit test test-all smoke lint package docs studies clean federation test-flower test-third-party test-newest

.venv/runs: pyproject.toml # what a fit and its study need
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[digits,compare]'
	touch $@

.venv/installed: .venv/runs # what developers need, added to the same environment
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

fit: .venv/runs
	$(BIN)/fl-lightning compare --config first_run

FLOWER := 1.42
SITE_PACKAGES := python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

.venv-flower-$(FLOWER)/installed: .venv/installed # an environment of its own on top of .venv, because Flower pins many packages
	$(PYTHON) -m venv $(@D)
	(echo $(CURDIR); $(BIN)/$(SITE_PACKAGES)) > "$$($(@D)/bin/$(SITE_PACKAGES))/on_top.pth"
	$(@D)/bin/pip install -qqq 'flwr==$(FLOWER).*'
	touch $@

federation: .venv-flower-$(FLOWER)/installed
	.venv-flower-$(FLOWER)/bin/python tools/federation_demo.py

test-flower: .venv-flower-$(FLOWER)/installed # two federations beside each other, because these tests mostly wait
	.venv-flower-$(FLOWER)/bin/python -m pytest -m flower --numprocesses 2 --dist loadfile tests/flower/test_flower.py tests/flower/test_flower_faults.py tests/flower/test_flower_masks.py tests/flower/test_flower_asynchronous.py tests/flower/test_flower_state.py tests/flower/test_flower_delivery.py

smoke: .venv-flower-$(FLOWER)/installed # of these what CI runs: three sites, two rounds, the bits of the simulation, a kill
	.venv-flower-$(FLOWER)/bin/python -m pytest -m smoke tests/flower/test_flower.py

.venv-third-party/installed: pyproject.toml # an environment of its own: these packages bring many others
	$(PYTHON) -m venv .venv-third-party
	.venv-third-party/bin/pip install --quiet --editable '.[third-party,test]'
	touch $@

test-third-party: .venv-third-party/installed # modules of other packages, unchanged
	.venv-third-party/bin/pytest -m third_party tests/third_party

test-newest: # with the newest releases of the packages that it builds on, also those before a release; not in CI
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --pre --upgrade --upgrade-strategy eager --editable '.[test]'
	.venv-newest/bin/pytest --numprocesses 3 --dist loadfile -m 'not slow'

PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile # a worker more than cores: some tests wait for processes of their own

test test-all: export PYTHONDONTWRITEBYTECODE = # kept bytecode saves each worker three seconds
test: .venv/installed # what is run at every step: five minutes on two quiet cores
	$(PYTEST) -m 'not slow'

test-all: .venv/installed # the rest: the whole matrix, every configuration, processes, the pages, properties with 200 examples
	$(PYTEST) -m 'slow or property' --hypothesis-profile thorough --timeout 900
	$(PYTEST) docs # every Python block and command of the pages, on little data

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/write_stub.py --check
	$(BIN)/mypy
	$(BIN)/pytest -m project tests/project

package: .venv/installed # wheel and sdist in dist/, checked; the wheel alone is used in another environment and folder
	rm -rf dist
	$(BIN)/python tools/check_package.py

docs: .venv/installed # the site, in docs/_build/html; any warning is an error
	$(BIN)/sphinx-build --quiet -W -n docs docs/_build/html

studies: .venv/installed # the tables and figures of docs/studies again, from the run tables there
	for folder in docs/studies/*/; do name=$$(basename $$folder); \
		$(BIN)/fl-lightning report --config configs/studies/$$name.yaml --table $$folder/table.csv.gz --out $$folder || exit 1; done
	$(BIN)/python tools/draw_front.py > docs/diagrams/adafed_under_attack.svg

clean:
	rm -rf .venv .venv-flower-* .venv-third-party .venv-newest build dist docs/_build docs/api
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
