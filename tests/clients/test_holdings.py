"""What clients hold: parts, a public share, noise, columns, and the server's set that they hold together."""

from typing import Any

import numpy as np
import pytest
import torch
from federations import CLASSES, Blobs, Consecutive, NoValidation, Plain, federate, trainer
from hypothesis import given
from hypothesis import strategies as st
from listed import AtHand, Listed, Users, split
from poisoning import mislabel
from sklearn.model_selection import train_test_split
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset
from torchmetrics.functional.classification import multiclass_accuracy

import fl_lightning as fl
from fl_lightning.data.changes import scaled_to_one
from fl_lightning.functional.labels import earth_movers_distance


def held(n: int = 200, clients: Any = 4, kind: Any = Blobs, **more: Any) -> fl.FederatedDataModule:
    data = fl.FederatedDataModule(kind(n=n), fl.IIDPartitioner(clients) if isinstance(clients, int) else clients, **more)
    data.setup("fit")
    return data


def given_to(data: fl.FederatedDataModule, client: int, **more: Any) -> torch.Tensor:
    """The inputs on which a client trains, in any order."""
    return torch.cat([batch[0] for batch in data.client(client, seed=0, **more).train_dataloader()])


def first_sorted(inputs: torch.Tensor) -> list[float]:
    return sorted(inputs[:, 0].tolist())


class Bytes(Blobs):
    """Images of one brightness, as bytes."""

    brightness, second_class = 255, 19

    def train_dataloader(self) -> Any:
        images = torch.full((40, 1, 2, 2), self.brightness, dtype=torch.uint8)
        return DataLoader(TensorDataset(images, (torch.arange(40) > self.second_class).long()), batch_size=5)


@given(st.integers(20, 200), st.integers(1, 4), st.floats(0.05, 0.4), st.floats(0.05, 0.4), st.integers(0, 1000))
def test_parts_are_disjoint_and_together_the_whole(n, clients, validation, test, seed):
    data = held(n, fl.IIDPartitioner(clients, seed), client_validation=validation, client_test=test, public_share=0.0)
    whole = fl.IIDPartitioner(clients, seed).partition(n)
    division = data.splits
    for k in range(clients):
        parts = [part[k].tolist() for part in (division.training, division.validation, division.test)]
        assert sorted(parts[0] + parts[1] + parts[2]) == sorted(whole[k].tolist())
        assert [len(part) for part in parts[1:]] == [max(1, round(s * len(whole[k]))) for s in (validation, test)]


def test_the_papers_split_is_stratified_as_scikit_learn_does_it():
    data = held(300, 3, client_validation=0.1, client_test=0.2)
    labels, whole = data.datamodule.train[1], fl.IIDPartitioner(3).partition(300)
    for k in range(3):
        own = labels[whole[k]]
        _, theirs = train_test_split(own.numpy(), test_size=20, stratify=own.numpy(), random_state=0)
        assert [len(part[k]) for part in (data.splits.test, data.splits.validation, data.splits.training)] == [20, 10, 70]
        ours = torch.bincount(labels[data.splits.test[k]], minlength=CLASSES).numpy()
        assert abs(ours - np.bincount(theirs, minlength=CLASSES)).max() <= 1


class Odd(Listed):
    """Has something else under the names of labels."""

    def __init__(self, labels: Any) -> None:
        super().__init__(torch.rand(40, 4), torch.zeros(40))
        self.targets = self.labels = labels

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], 0


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.rand(40, 4), torch.rand(40)),  # a regression's targets
        TensorDataset(torch.rand(40, 4), torch.tensor([-1, 0, 1, -1] * 10)),
        *(Odd(labels) for labels in (["a", "b"] * 20, [{}] * 40, [[1], [2, 3]] * 20, 7)),
    ],
)
def test_examples_without_classes_are_split_all_the_same(dataset):
    assert split(dataset, fl.IIDPartitioner(2), client_test=0.2).splits.test.sizes.tolist() == [4, 4]


@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_the_server_validates_on_the_union_of_the_test_parts(kind):
    data = fl.FederatedDataModule(kind(n=60), fl.IIDPartitioner(3), client_test=0.25, server_set="clients")
    module = Plain()
    run = trainer(1, fl.FederatedOrchestrator())
    run.fit(module, data)
    inputs, labels = (tensor[data.splits.test.order] for tensor in data.datamodule.train)
    expected = multiclass_accuracy(module(inputs), labels, CLASSES, average="micro")
    assert run.callback_metrics["val_acc"] == pytest.approx(float(expected))
    (result,) = run.test(module, data, verbose=False)
    assert result["val_acc"] == pytest.approx(float(expected))


def test_a_new_process_tests_on_the_same_union():
    class OnlyWhatIsAsked(Blobs):
        ready = False

        def setup(self, stage):
            self.ready = self.ready or stage == "fit"

        def train_dataloader(self):
            assert self.ready
            return super().train_dataloader()

    data = fl.FederatedDataModule(OnlyWhatIsAsked(n=60), fl.IIDPartitioner(3), client_test=0.25, server_set="clients")
    trainer(1).test(Plain(), data, verbose=False)
    assert data.splits.test.sizes.tolist() == [5, 5, 5]


def test_without_a_set_of_its_own_the_server_takes_the_clients():
    data = fl.FederatedDataModule(NoValidation(), fl.IIDPartitioner(3), client_test=0.2, server_set="clients")
    assert data.has_validation_set
    run = trainer(1, fl.FederatedOrchestrator())
    run.fit(Plain(), data)
    assert "val_acc" in run.callback_metrics


@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_the_public_share_is_balanced_and_everyones(kind):
    data = held(300, fl.DirichletPartitioner(3, 0.5), kind, public_share=0.1)
    labels, public = data.datamodule.train[1], data.splits.public
    assert torch.bincount(labels[public]).tolist() == [10, 10, 10]
    assert sorted(torch.cat([data.indices.order, public]).tolist()) == list(range(300))
    for k in range(3):
        wanted = data.datamodule.train[0][torch.cat([data.indices[k], public])]
        assert first_sorted(given_to(data, k)) == first_sorted(wanted)
        assert data.num_examples(k) == len(data.indices[k])
    assert sum(len(y) for _, y in data.train_dataloader()) == 300  # the centralized baseline has it, too


def test_sharing_brings_clients_nearer_to_the_whole():
    """Closed form: two clients of one class each, and g examples of each class for both."""
    counts = torch.tensor([[8, 0], [0, 8]])
    assert earth_movers_distance(counts).tolist() == [1.0, 1.0]
    assert earth_movers_distance(counts + 4).tolist() == pytest.approx([0.5, 0.5])
    skew = torch.tensor([[3, 1], [1, 3], [0, 4]])  # the whole: 1/3, 2/3
    assert earth_movers_distance(skew).tolist() == pytest.approx([10 / 12, 2 / 12, 8 / 12])


def noise_of(data: fl.FederatedDataModule, client: int, part: str) -> torch.Tensor:
    noisy = torch.cat([x for x, _ in data.client_evaluation_view(client, part).val_dataloader()])
    return noisy - data.datamodule.train[0][getattr(data.splits, part)[client]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_noise_has_the_clients_variance(kind):
    """sigma * i / N for i = 1 .. N: within four standard errors of a normal sample's variance."""
    data = held(3000, 3, kind, client_test=0.2, feature_noise=0.6)
    for client in range(3):
        expected = 0.6 * (client + 1) / 3
        for part in ("training", "test"):
            noise = noise_of(data, client, part)
            size = noise.numel()
            assert abs(float(noise.double().var()) - expected) < 4 * expected * (2 / size) ** 0.5
            assert abs(float(noise.double().mean())) < 4 * (expected / size) ** 0.5
            assert torch.equal(noise, noise_of(data, client, part))  # the same in every round
    assert len({float(noise_of(data, k, "training")[0, 0]) for k in range(3)}) == 3


@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_clients_and_the_central_baseline_train_on_the_noise_that_clients_have(kind):
    data = held(60, 2, kind, feature_noise=0.5, public_share=0.1, client_test=0.2)
    own = [data.datamodule.train[0][data.indices[k]] + noise_of(data, k, "training") for k in range(2)]
    clean = data.datamodule.train[0][data.splits.public]
    assert first_sorted(given_to(data, 1)) == pytest.approx(first_sorted(torch.cat([own[1], clean])))
    central = torch.cat([x for x, _ in data.train_dataloader()])
    assert first_sorted(central) == pytest.approx(first_sorted(torch.cat([*own, clean])))


def test_images_in_bytes_are_scaled_before_the_noise():
    seen = given_to(held(40, 2, Bytes, feature_noise=1e-6, public_share=0.1), 0)
    assert seen.dtype == torch.float32
    assert (seen - 1).abs().max() < 0.01


def test_repeats_of_bytes_are_changed_in_zero_to_one():
    class Brighter(torch.nn.Module):
        def forward(self, image):
            assert 0 <= float(image.min()) <= float(image.max()) <= 1
            return image + 0.5

    kind = type("Dark", (Bytes,), {"brightness": 51, "second_class": 30})
    data = held(40, Consecutive((31, 5)), kind, rebalancing=fl.LabelAveraging(Brighter()), public_share=0.1)
    seen = torch.cat([scaled_to_one(given_to(data, k)).flatten() for k in range(2)])
    assert {round(x, 4) for x in seen.tolist()} == {0.2, 0.7}


def test_all_at_once_as_from_memory():
    """Wrong labels, repeats, noise and a public share: tensors in memory and examples one by one hold the same labels."""
    seen = []
    for kind in (Blobs, AtHand):
        more = {"public_share": 0.1, "feature_noise": 0.1, "rebalancing": fl.LabelAveraging()}
        data = held(120, fl.DirichletPartitioner(3), kind, **more)
        mislabel(data, {1: 0.5}, seed=7)
        seen.append([torch.cat([y for _, y in data.client(k, seed=5).train_dataloader()]).tolist() for k in range(3)])
    assert seen[0] == seen[1]


class Shifted(Dataset):
    """Transforms its labels, which it lists without the change if they are known."""

    target_transform = staticmethod(lambda label: (label + 1) % 3)

    def __init__(self, known: bool) -> None:
        self.stored = [k % 3 for k in range(30)]
        if known:
            self.targets = self.stored

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return torch.rand(4), self.target_transform(self.stored[index])


@pytest.mark.parametrize("kind", ["joined", "read"])
def test_wrong_labels_of_datasets_that_transform_them(kind):
    dataset = ConcatDataset([Shifted(True), Subset(Shifted(True), range(30))]) if kind == "joined" else Shifted(False)
    data = split(dataset, fl.IIDPartitioner(2))
    mislabel(data, {0: 1.0}, seed=1)
    given = torch.cat([y for _, y in data.client_evaluation_view(0, "training").val_dataloader()])
    true = torch.tensor([dataset[int(k)][1] for k in data.indices[0]])
    assert (given != true).all()


def test_one_hot_labels_are_divided_by_the_stored_class_but_cannot_be_falsified():
    dataset = Shifted(True)
    dataset.target_transform = lambda label: torch.eye(3)[label]
    data = split(dataset, fl.ClassesPartitioner(3, 1))
    assert sorted((part % 3).unique().tolist() for part in data.indices) == [[0], [1], [2]]
    mislabel(data, {0: 1.0}, seed=1)
    message = (
        r"one number as label, but Shifted returns a label of type Tensor\. Return tuples, or remove .*'federation.attackers'"
    )
    with pytest.raises(fl.DataError, match=message):
        next(iter(data.client(0, 0).train_dataloader()))


def test_clients_by_a_column_have_its_names():
    users = Users(["eve", "bob", "eve", "ann", "bob", "eve"])
    data = split(users, fl.ColumnPartitioner("user_id"))
    assert [data.client_name(k) for k in range(3)] == ["ann", "bob", "eve"]
    assert [part.tolist() for part in data.indices] == [[3], [1, 4], [0, 2, 5]]
    with pytest.warns(UserWarning, match=r"1 of 3 values of the column 'user_id' have fewer than 2 examples .* left out: ann"):
        some = split(users, fl.ColumnPartitioner("user_id", min_examples=2))
    assert [some.client_name(k) for k in range(2)] == ["bob", "eve"]
    numbers = split(Subset(Users([7, 5, 7, 5]), [3, 0, 2]), fl.ColumnPartitioner("user_id"))
    assert [part.tolist() for part in numbers.indices] == [[0], [1, 2]]


def test_a_hugging_face_column():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0], "label": [0, 1, 0], "writer": ["b", "a", "b"]})
    assert [part.tolist() for part in split(rows, fl.ColumnPartitioner("writer")).indices] == [[1], [0, 2]]


class Named(Users):
    """With numbers for domains, and names for the numbers."""

    def __init__(self, domains: list[int], names: tuple[str, ...]) -> None:
        super().__init__([0] * len(domains))
        self.domains, self.domains_names = torch.tensor(domains), names


def test_each_data_set_is_a_domain_and_domains_keep_their_names_in_parts_and_unions():
    joined = ConcatDataset([Users([1, 1]), Users([2, 2, 2])])
    assert [part.tolist() for part in split(joined, fl.DomainPartitioner()).indices] == [[0, 1], [2, 3, 4]]
    assert split(joined, fl.ColumnPartitioner("user_id")).indices.sizes.tolist() == [2, 3]
    one, other = Named([1, 0, 1], ("photo", "sketch")), Named([0, 1], ("art", "photo"))
    part = split(Subset(one, [0, 2]), fl.DomainPartitioner())
    assert [part.client_name(k) for k in range(part.num_clients)] == ["sketch"]
    union = split(ConcatDataset([one, other]), fl.DomainPartitioner())
    assert [union.client_name(k) for k in range(3)] == ["art", "photo", "sketch"]
    assert [own.tolist() for own in union.indices] == [[3], [1, 4], [0, 2]]


def test_with_batchnorm_a_last_batch_of_one_is_left_out():
    module = Plain(batchnorm=True)
    run = federate(module, 2, data=Blobs(n=22), partitioner=Consecutive((11, 6, 5)), local=fl.LocalTraining(max_epochs=1))
    assert run.global_step == 2  # batches of 5: 11 and 6 end on a batch of one
    for kind in (AtHand, Blobs):
        data = held(22, Consecutive((11, 6, 5)), kind)
        loaders = [data.client(k, 0, drop_single=True).train_dataloader() for k in range(3)]
        assert [[len(y) for _, y in loader] for loader in loaders] == [[5, 5], [5], [5]]
        assert [len(loader) for loader in loaders] == [2, 1, 1]
        assert [len(y) for _, y in data.client(1, 0).train_dataloader()] == [5, 1]


def test_a_client_of_one_example_trains_without_batchnorm_or_with_public_examples():
    assert federate(Plain(), 1, data=Blobs(n=6), partitioner=Consecutive((5, 1))).global_step == 1
    shared = fl.FederatedDataModule(Blobs(n=60), Consecutive((20, 1)), public_share=0.1)
    run = trainer(1, fl.FederatedOrchestrator())
    run.fit(Plain(batchnorm=True), shared)
    assert run.global_step == 1
