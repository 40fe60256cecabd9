"""The example of docs/speed.md: only LoRA's adapters and the head travel."""

import csv
from pathlib import Path

import pytest
import torch
from federations import trainer, weights

from fl_lightning import FederatedDataModule, FederatedOrchestrator, IIDPartitioner, LocalTraining

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PAGE = EXAMPLES.parent / "speed.md"
QUICK = ("--trainer.max_epochs=1", "--trainer.limit_val_batches=1", "--federation.local.limit_train_batches=1")
pytestmark = [pytest.mark.third_party, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("transformers")
pytest.importorskip("peft")


def ran(fl, rank: int) -> list[dict[str, str]]:
    """Run the example's YAML, and return the rows of its table of clients."""
    command = ["fit", "--config", str(EXAMPLES / "lora.yaml"), "--trainer.logger=false", *QUICK]
    status, text = fl(*command, f"--model.rank={rank}", f"--trainer.default_root_dir={rank}")
    assert status == 0, text
    return list(csv.DictReader(Path(str(rank), "client_rounds.csv").open()))


def test_only_adapters_and_head_travel(fl, monkeypatch):
    """The bytes are those of the tensors that peft itself counts as trained; the page has the same numbers."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from lora import SequenceClassifier

    found = {}
    for rank in (0, 4):
        module = SequenceClassifier(rank=rank)
        sizes = [p.numel() for p in module.parameters()] if rank == 0 else [module.network.get_nb_trainable_parameters()[0]]
        found[rank] = {int(float(row["bytes_up"])) for row in ran(fl, rank)}
        assert found[rank] == {4 * sum(sizes)}
    page = PAGE.read_text()
    assert all(f"{next(iter(sent)):,}" in page for sent in found.values())


def test_the_network_stays_as_it_was(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from lora import SentenceData, SequenceClassifier

    module = SequenceClassifier(rank=4)
    before = weights(module)
    local = LocalTraining(limit_train_batches=1)
    run = trainer(1, FederatedOrchestrator(local=local), num_sanity_val_steps=0, limit_val_batches=1)
    run.fit(module, FederatedDataModule(SentenceData(), IIDPartitioner(2)))
    changed = {name for name, tensor in weights(module).items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "classifier" in name for name in changed)
