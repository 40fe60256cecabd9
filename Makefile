# make fit: AdaFed beside FedAvg on real digits. make test: the whole suite. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: fit test lint studies clean

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

fit: .venv/installed
	$(BIN)/fl-lightning compare --config first_run

test: .venv/installed # a worker more than cores: some tests wait for processes of their own
	$(BIN)/pytest --numprocesses 3 --dist loadfile

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

studies: .venv/installed # the tables and figures of docs/studies again, from the run tables there
	for folder in docs/studies/*/; do name=$$(basename $$folder); \
		$(BIN)/fl-lightning report --config configs/studies/$$name.yaml --table $$folder/table.csv.gz --out $$folder || exit 1; done

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
