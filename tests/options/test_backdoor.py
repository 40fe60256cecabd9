"""Backdoors: what attackers train on, and how well the aggregated model learns it."""

import lightning as L
import numpy as np
import pytest
import torch
from federations import Consecutive, Plain, federate, ready
from listed import Listed
from poisoning import mislabel
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import Attackers, Backdoor, FederatedDataModule, LocalTraining, PermutedLabels, ScaledUpdate

FIVE = (30, 41, 52, 27, 50)


class Digits(L.LightningDataModule):
    """scikit-learn's 8 x 8 digits, in [0, 1] or in whole numbers to 255."""

    def __init__(self, dtype=torch.float32, tensors=True):
        super().__init__()
        found = load_digits()
        images = torch.from_numpy(found.images / 16)[:, None]
        images = (images * 255).round().to(dtype) if dtype == torch.uint8 else images.to(dtype)
        labels = torch.from_numpy(found.target)
        size = sum(FIVE)
        kind = TensorDataset if tensors else Listed
        self.train, self.val = kind(images[:size], labels[:size]), (images[size : size + 301], labels[size : size + 301])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=10, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(*self.val), batch_size=64)


class Reader(Plain):
    """A linear model of the digits."""

    def __init__(self, lr=0.1, classes=10):
        super().__init__(lr)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
        self.train_acc, self.val_acc = (MulticlassAccuracy(classes, average="micro") for _ in range(2))


@pytest.mark.parametrize(("dtype", "white"), [(torch.uint8, 255), (torch.float32, 1), (torch.float64, 1)])
def test_the_trigger_is_a_square_in_the_corner(dtype, white):
    images = Digits(dtype).val[0]
    for given, pixels in ((None, white), (7.0, 7)):
        expected = images.numpy().copy()
        expected[:, :, 5:, 5:] = pixels
        before = images.clone()
        np.testing.assert_array_equal(Backdoor(size=3, value=given).stamp(images).numpy(), expected)
        assert torch.equal(images, before)


@pytest.mark.parametrize("labels", [None, PermutedLabels(2)])
@pytest.mark.parametrize("tensors", [True, False])
def test_what_attackers_train_on(tensors, labels):
    """A share of the attacker's examples is stamped and of the target class, those it validates on, too; nobody else's."""
    data = ready(FederatedDataModule(Digits(tensors=tensors), Consecutive(FIVE), client_validation=0.2, client_test=0.2))
    true = {part: [read(data, k, part) for k in range(5)] for part in ("training", "validation", "test")}
    lie = Backdoor(target=3, share=0.5, size=2)
    wrong = {} if labels is None else {1: labels}
    for _ in range(2):  # the same in every round
        mislabel(data, wrong, 5, {1: lie})
        for part, before in true.items():
            for client, (images, classes) in enumerate(before):
                now, said = read(data, client, part)
                believed = classes if client != 1 or labels is None or part == "test" else (classes + 2) % 10
                stamped = (now != images).flatten(1).any(dim=1) | (said != believed)
                if client != 1 or part == "test":
                    assert not stamped.any()
                    continue
                assert int(stamped.sum()) <= round(0.5 * len(images))
                assert int(stamped.sum()) > 0.3 * len(images)  # some were threes with white corners before
                assert (said[stamped] == 3).all()
                assert (now[stamped][:, :, 6:, 6:] == 1).all()
                assert torch.equal(now[:, :, :6], images[:, :, :6])
    counts = data.label_counts()
    assert counts.sum(dim=1).tolist() == data.indices.sizes.tolist()
    assert int(counts[1, 3]) > int((true["training"][1][1] == 3).sum())
    mislabel(data, {}, 5)
    assert torch.equal(read(data, 1, "training")[0], true["training"][1][0])


def read(data, client, part):
    loader = data.client_datasets.evaluation_loader(client, part, 16)
    batches = list(loader)
    return torch.cat([x for x, _ in batches]), torch.cat([torch.as_tensor(y) for _, y in batches])


class Watch(L.Callback):
    """The success that each round logs, and the model that it belongs to."""

    def __init__(self):
        self.seen = []

    def on_validation_epoch_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            success = trainer.callback_metrics.get("federation/backdoor_success")
            weights = [p.detach().clone() for p in pl_module.parameters()]
            self.seen.append((None if success is None else float(success), weights))


def test_the_success_rate_is_that_of_the_aggregated_model():
    """Worked by hand from the model: of all validation images but the target's own, with white corners."""
    data, watch = Digits(), Watch()
    torch.manual_seed(0)
    lie = Backdoor(target=2, share=0.6, size=3)
    attackers = Attackers(clients=[0, 3], backdoor=lie, model=ScaledUpdate(2.0), from_round=1)
    module = Reader(classes=12)  # more than there are labels
    federate(module, 3, watch, data=data, partitioner=Consecutive(FIVE), attackers=attackers, local=LocalTraining(max_epochs=3))
    images, labels = (tensor.numpy() for tensor in data.val)
    stamped = images[labels != 2].copy()
    stamped[..., -3:, -3:] = 1
    for success, (weight, bias) in watch.seen:
        logits = stamped.reshape(len(stamped), -1) @ weight.numpy().T + bias.numpy()
        assert success == pytest.approx((logits.argmax(axis=1) == 2).mean(), abs=1 / len(stamped))
    successes = [success for success, _ in watch.seen]
    assert successes[-1] > successes[0] + 0.1, "the attack teaches nothing"
    federate(Reader(), 1, watch, data=data, partitioner=Consecutive(FIVE))
    assert watch.seen[-1][0] is None  # without a backdoor
