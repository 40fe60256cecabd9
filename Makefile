# make fit: train AdaFed on real digits. make test: the whole suite. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: fit test lint clean

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

fit: .venv/installed
	$(BIN)/fl-lightning fit --config configs/adafed_mnist.yaml --data.datamodule.source embedded \
		--trainer.default_root_dir runs/fit-$$(date +%Y%m%d-%H%M%S)

test: .venv/installed
	$(BIN)/pytest --numprocesses 2 --dist loadfile

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
