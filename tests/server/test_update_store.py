"""A round's models on disk: the same result as in memory, for models that arrive one by one."""

import pytest
import torch
from federations import Plain, federate, same_bits, weights

from fl_lightning import ClientError, ClientUpdate, FederationCallback, FedMedian, LocalTraining, ShapleyValues, Storage
from fl_lightning.server.aggregate import StoredUpdate
from fl_lightning.types import Snapshot


def test_a_file_that_another_rank_does_not_see_is_named(tmp_path):
    sent = ClientUpdate(0, 0, 5, 1, model=Snapshot(torch.ones(3), torch.tensor([0])))
    stored = StoredUpdate(sent, tmp_path / "0.bin")
    (tmp_path / "0.bin").unlink()
    with pytest.raises(ClientError, match=r"'trainer.default_root_dir' to a file system that all ranks share"):
        stored.load()


@pytest.fixture
def kept(monkeypatch):
    """Every update that is written to a file, and where."""
    written = []
    build = StoredUpdate.__init__

    def noticed(self, update, path):
        build(self, update, path)
        written.append(path)

    monkeypatch.setattr(StoredUpdate, "__init__", noticed)
    return written


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        (FedMedian, "bf16-true"),
        pytest.param(FedMedian, "64-true", marks=pytest.mark.slow),
        pytest.param(lambda: ShapleyValues("val_acc"), "32-true", marks=pytest.mark.slow),
    ],
)
def test_a_federation_on_disk_is_the_one_in_memory(tmp_path, strategy, precision, kept):
    finals, local = [], LocalTraining(precision=precision)
    for limit, files in ((4.0, 0), (0.0, 9)):
        torch.manual_seed(3)
        module = Plain()
        federate(module, 3, strategy=strategy(), local=local, storage=Storage(limit), flags={"default_root_dir": tmp_path})
        finals.append(weights(module))
        assert len(kept) == files
    assert same_bits(*finals)
    assert {path.parent.parent for path in kept} == {tmp_path / "updates"}
    assert len({path.parent for path in kept}) == 3  # a folder of its own for each round, so that other runs may use it, too
    assert not (tmp_path / "updates").exists()


class Fails(FederationCallback):
    def on_client_end(self, trainer, pl_module, update):
        if update.client == 2:
            raise ZeroDivisionError


def test_files_do_not_outlive_an_error(tmp_path, kept):
    with pytest.raises(ZeroDivisionError):
        federate(Plain(), 2, Fails(), strategy=FedMedian(), storage=Storage(memory=0), flags={"default_root_dir": tmp_path})
    assert kept
    assert not (tmp_path / "updates").exists()
