"""What clients hold: parts, a public share, noise, columns, and the server's set that they hold together."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import CLASSES, Blobs, Consecutive, Plain, blobs, federate, same_bits, trainer, weights
from hypothesis import given, settings
from hypothesis import strategies as st
from poisoning import mislabel
from sklearn.model_selection import train_test_split
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset
from torchmetrics.functional.classification import multiclass_accuracy

from fl_lightning import (
    Attackers,
    ColumnPartitioner,
    ConfigurationError,
    DataError,
    DirichletPartitioner,
    DomainPartitioner,
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    LabelAveraging,
    LocalTraining,
)
from fl_lightning.data import TensorLoader
from fl_lightning.data.feature_noise import scaled_to_one
from fl_lightning.functional import earth_movers_distance


def held(n: int = 200, clients: int = 4, **more: Any) -> FederatedDataModule:
    data = FederatedDataModule(Blobs(n=n), IIDPartitioner(clients), **more)
    data.setup("fit")
    return data


class AtHand(Blobs):
    """As tuples, one by one: the dataset is not tensors in memory."""

    def train_dataloader(self) -> Any:
        return DataLoader(Listed(*self.train), batch_size=self.batch_size, shuffle=self.shuffle)


class Listed(Dataset):
    def __init__(self, inputs, labels):
        self.inputs, self.targets = inputs, labels

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], int(self.targets[index])


# ------------------------------------------------------------------ parts


@settings(max_examples=30, deadline=None)
@given(st.integers(20, 200), st.integers(1, 4), st.floats(0.05, 0.4), st.floats(0.05, 0.4), st.integers(0, 1000))
def test_parts_are_disjoint_and_together_the_whole(n, clients, validation, test, seed):
    data = FederatedDataModule(
        Blobs(n=n), IIDPartitioner(clients, seed), client_validation=validation, client_test=test, public_share=0.0
    )
    data.setup("fit")
    whole = IIDPartitioner(clients, seed).partition(n)
    division = data.splits
    for k in range(clients):
        parts = [part[k].tolist() for part in (division.training, division.validation, division.test)]
        assert sorted(parts[0] + parts[1] + parts[2]) == sorted(whole[k].tolist())
        assert [len(part) for part in parts[1:]] == [max(1, round(s * len(whole[k]))) for s in (validation, test)]


def test_the_papers_split_is_stratified_as_scikit_learn_does_it():
    data = held(300, 3, client_validation=0.1, client_test=0.2)
    labels, whole = data.datamodule.train[1], IIDPartitioner(3).partition(300)
    for k in range(3):
        own = labels[whole[k]]
        _, theirs = train_test_split(own.numpy(), test_size=20, stratify=own.numpy(), random_state=0)
        assert len(data.splits.test[k]) == 20
        assert len(data.splits.validation[k]) == 10
        assert len(data.splits.training[k]) == 70
        ours = torch.bincount(labels[data.splits.test[k]], minlength=CLASSES).numpy()
        assert abs(ours - np.bincount(theirs, minlength=CLASSES)).max() <= 1


def test_parts_do_not_depend_on_when_they_are_made():
    one, other = held(client_validation=0.2, client_test=0.2), held(client_validation=0.2, client_test=0.2)
    assert torch.equal(one.splits.test.order, other.splits.test.order)
    assert torch.equal(one.splits.validation.order, other.splits.validation.order)
    alone = held(client_test=0.2)  # the test part is the same without a validation part
    assert torch.equal(one.splits.test.order, alone.splits.test.order)


def test_regression_targets_are_split_without_classes():
    class Regression(Blobs):
        def train_dataloader(self):
            return DataLoader(TensorDataset(self.train[0], self.train[0].sum(1)), batch_size=5)

    data = FederatedDataModule(Regression(n=50), IIDPartitioner(2), client_test=0.2)
    data.setup("fit")
    assert data.splits.test.sizes.tolist() == [5, 5]


def test_a_client_left_without_training_examples():
    for name in ("validation", "test"):
        with pytest.raises(
            DataError, match=rf"'data.client_{name}' is 0.3, which leaves client 1 no examples to train on: it has 1"
        ):
            FederatedDataModule(Blobs(), Consecutive((5, 1)), **{f"client_{name}": 0.3}).setup("fit")
    with pytest.raises(DataError, match=r"'data.client_validation' is 0.4, which leaves client 0 no examples .* it has 2"):
        FederatedDataModule(Blobs(), Consecutive((2, 9)), client_test=0.4, client_validation=0.4).setup("fit")


def test_a_part_that_was_not_asked_for():
    with pytest.raises(DataError, match=r"have no test examples. Set 'data.client_test' to a share above 0"):
        held().client_evaluation_view(0, "test")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"client_test": 1.0}, "'data.client_test' must be at least 0 and below 1"),
        ({"client_validation": -0.1}, "'data.client_validation' must be at least 0 and below 1"),
        ({"client_test": 0.5, "client_validation": 0.5}, "must be below 1 together with 'data.client_test', but is 1.0"),
        ({"server_set": "clients"}, "'data.server_set' must be 'datamodule', or 'clients' with 'data.client_test' above 0"),
        ({"public_share": 1.0}, "'data.public_share' must be at least 0 and below 1"),
        ({"feature_noise": -1.0}, "'data.feature_noise' must be 0 or above"),
    ],
)
def test_settings_that_make_no_sense(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        FederatedDataModule(Blobs(), IIDPartitioner(2), **wrong)


# ------------------------------------------------------------------ the server's set


@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_the_server_validates_on_the_union_of_the_test_parts(kind):
    data = FederatedDataModule(kind(n=60), IIDPartitioner(3), client_test=0.25, server_set="clients")
    module = Plain()
    run = trainer(1, FederatedOrchestrator())
    run.fit(module, data)
    inputs, labels = (tensor[data.splits.test.order] for tensor in data.datamodule.train)
    expected = multiclass_accuracy(module(inputs), labels, CLASSES, average="micro")
    assert run.callback_metrics["val_acc"] == pytest.approx(float(expected))
    (result,) = run.test(module, data, verbose=False)
    assert result["val_acc"] == pytest.approx(float(expected))


def test_a_new_process_tests_on_the_same_union():
    class OnlyWhatIsAsked(Blobs):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.ready = False

        def setup(self, stage):
            self.ready = self.ready or stage == "fit"

        def train_dataloader(self):
            assert self.ready
            return super().train_dataloader()

    data = FederatedDataModule(OnlyWhatIsAsked(n=60), IIDPartitioner(3), client_test=0.25, server_set="clients")
    L.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False).test(Plain(), data, verbose=False)
    assert data.splits.test.sizes.tolist() == [5, 5, 5]


def test_without_a_set_of_its_own_the_server_takes_the_clients():
    class TrainOnly(L.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(TensorDataset(*blobs(60, 1)), batch_size=5)

    data = FederatedDataModule(TrainOnly(), IIDPartitioner(3), client_test=0.2, server_set="clients")
    assert data.has_validation_set
    run = trainer(1, FederatedOrchestrator())
    run.fit(Plain(), data)
    assert "val_acc" in run.callback_metrics


# ------------------------------------------------------------------ public share


@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_the_public_share_is_balanced_and_everyones(kind):
    data = FederatedDataModule(kind(n=300), DirichletPartitioner(3, 0.5), public_share=0.1)
    data.setup("fit")
    labels, public = data.datamodule.train[1], data.splits.public
    assert torch.bincount(labels[public]).tolist() == [10, 10, 10]
    everyone = torch.cat([data.indices.order, public])
    assert sorted(everyone.tolist()) == list(range(300))
    for k in range(3):
        seen = torch.cat([batch[0] for batch in data.client(k, seed=0).train_dataloader()])
        wanted = data.datamodule.train[0][torch.cat([data.indices[k], public])]
        assert sorted(seen[:, 0].tolist()) == sorted(wanted[:, 0].tolist())
        assert data.num_examples(k) == len(data.indices[k])
    union = torch.cat([batch[1] for batch in data.train_dataloader()])
    assert len(union) == 300  # the centralized baseline has it, too


def test_sharing_brings_clients_nearer_to_the_whole():
    """Closed form: two clients of one class each, and g examples of each class for both."""
    counts = torch.tensor([[8, 0], [0, 8]])
    assert earth_movers_distance(counts).tolist() == [1.0, 1.0]
    shared = counts + 4
    assert earth_movers_distance(shared).tolist() == pytest.approx([0.5, 0.5])
    skew = torch.tensor([[3, 1], [1, 3], [0, 4]])  # the whole: 1/3, 2/3
    assert earth_movers_distance(skew).tolist() == pytest.approx([10 / 12, 2 / 12, 8 / 12])


def test_a_public_share_that_takes_too_much():
    with pytest.raises(
        DataError, match=r"'data.public_share' is 0.9, which takes \d+ examples of each class, but class \d has only \d+"
    ):
        held(public_share=0.9)

    class Unlabelled(Blobs):
        def train_dataloader(self):
            return DataLoader(TensorDataset(self.train[0]), batch_size=5)

    with pytest.raises(DataError, match="has no integer label"):
        FederatedDataModule(Unlabelled(), IIDPartitioner(2), public_share=0.1).setup("fit")


# ------------------------------------------------------------------ feature noise


def noise_of(data: FederatedDataModule, client: int, part: str) -> torch.Tensor:
    noisy = torch.cat([x for x, _ in data.client_evaluation_view(client, part).val_dataloader()])
    return noisy - data.datamodule.train[0][getattr(data.splits, part)[client]]


@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_noise_has_the_clients_variance(kind):
    """sigma * i / N for i = 1 .. N: within four standard errors of a normal sample's variance."""
    data = FederatedDataModule(kind(n=3000), IIDPartitioner(3), client_test=0.2, feature_noise=0.6)
    data.setup("fit")
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
def test_a_client_trains_on_the_noise_that_it_has(kind):
    data = FederatedDataModule(kind(n=60), IIDPartitioner(2), feature_noise=0.5, public_share=0.1, client_test=0.2)
    data.setup("fit")
    seen = torch.cat([x for x, _ in data.client(1, seed=3).train_dataloader()])
    own = data.datamodule.train[0][data.indices[1]] + noise_of(data, 1, "training")
    clean = data.datamodule.train[0][data.splits.public]
    assert sorted(seen[:, 0].tolist()) == pytest.approx(sorted(torch.cat([own, clean])[:, 0].tolist()))


def test_the_union_of_noisy_test_parts_is_noisy():
    data = held(60, 2, client_test=0.25, server_set="clients", feature_noise=0.5)
    loader = data.val_dataloader()
    assert isinstance(loader, TensorLoader)
    ours = torch.cat([x for x, _ in loader])
    each = [torch.cat([x for x, _ in data.client_evaluation_view(k, "test").val_dataloader()]) for k in range(2)]
    assert sorted(ours[:, 0].tolist()) == sorted(torch.cat(each)[:, 0].tolist())
    one_by_one = FederatedDataModule(AtHand(n=60), IIDPartitioner(2), client_test=0.25, server_set="clients", feature_noise=0.5)
    one_by_one.setup("fit")
    assert len(torch.cat([x for x, _ in one_by_one.val_dataloader()])) == 16


def test_images_in_bytes_are_scaled_before_the_noise():
    class Bytes(Blobs):
        def train_dataloader(self):
            images = torch.full((40, 1, 2, 2), 255, dtype=torch.uint8)
            return DataLoader(TensorDataset(images, torch.arange(40) % 2), batch_size=5)

    data = FederatedDataModule(Bytes(), IIDPartitioner(2), feature_noise=1e-6, public_share=0.1)
    data.setup("fit")
    seen = torch.cat([x for x, _ in data.client(0, seed=0).train_dataloader()])
    assert seen.dtype == torch.float32
    assert (seen - 1).abs().max() < 0.01


@pytest.mark.parametrize("kind", [Blobs, AtHand])
def test_the_central_baseline_trains_on_the_clients_noise(kind):
    data = FederatedDataModule(kind(n=60), IIDPartitioner(2), feature_noise=0.5, public_share=0.1)
    data.setup("fit")
    seen = torch.cat([x for x, _ in data.train_dataloader()])
    noisy = [data.datamodule.train[0][data.indices[k]] + noise_of(data, k, "training") for k in range(2)]
    expected = torch.cat([*noisy, data.datamodule.train[0][data.splits.public]])
    assert sorted(seen[:, 0].tolist()) == pytest.approx(sorted(expected[:, 0].tolist()))


def test_repeats_of_bytes_are_changed_in_zero_to_one():
    class Brighter(torch.nn.Module):
        def forward(self, image):
            assert 0 <= float(image.min()) <= float(image.max()) <= 1
            return image + 0.5

    class Bytes(Blobs):
        def train_dataloader(self):
            images = torch.full((40, 1, 2, 2), 51, dtype=torch.uint8)
            return DataLoader(TensorDataset(images, (torch.arange(40) > 30).long()), batch_size=5)

    data = FederatedDataModule(Bytes(), Consecutive((31, 5)), rebalancing=LabelAveraging(Brighter()), public_share=0.1)
    data.setup("fit")
    seen = torch.cat([scaled_to_one(x) for k in range(2) for x, _ in data.client(k, seed=0).train_dataloader()])
    assert {round(x, 4) for x in seen.flatten().tolist()} == {0.2, 0.7}


def test_noise_on_what_is_no_tensor():
    class Pictures(Blobs):
        def train_dataloader(self):
            return DataLoader([("a picture", k % 2) for k in range(40)], batch_size=5)

    data = FederatedDataModule(Pictures(), IIDPartitioner(2), feature_noise=0.1)
    data.setup("fit")
    with pytest.raises(DataError, match=r"'data.feature_noise' adds noise to tensors, but the dataset returns a str"):
        next(iter(data.client(0, seed=0).train_dataloader()))


def test_all_at_once_as_from_memory():
    """Wrong labels, repeats, noise and a public share: tensors in memory and examples one by one hold the same labels."""
    seen = []
    for kind in (Blobs, AtHand):
        data = FederatedDataModule(
            kind(n=120), DirichletPartitioner(3), public_share=0.1, feature_noise=0.1, rebalancing=LabelAveraging()
        )
        data.setup("fit")
        mislabel(data, {1: 0.5}, seed=7)
        seen.append([torch.cat([y for _, y in data.client(k, seed=5).train_dataloader()]).tolist() for k in range(3)])
    assert seen[0] == seen[1]


def test_test_parts_keep_their_true_labels():
    data = held(client_test=0.3, client_validation=0.2)
    mislabel(data, {0: 1.0}, seed=1)
    labels = data.datamodule.train[1]
    for part, wrong in (("training", True), ("validation", True), ("test", False)):
        given = torch.cat([y for _, y in data.client_evaluation_view(0, part).val_dataloader()])
        assert bool((given != labels[getattr(data.splits, part)[0]]).all()) is wrong
    federate(Plain(), 1, data=Blobs(n=40), partitioner=IIDPartitioner(2), attackers=Attackers({0: 1.0}))


# ------------------------------------------------------------------ columns


class Users(Dataset):
    def __init__(self, users: list[Any]) -> None:
        self.user_id = users

    def __len__(self) -> int:
        return len(self.user_id)

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), index % 3


class OfUsers(L.LightningDataModule):
    def __init__(self, dataset: Any) -> None:
        super().__init__()
        self.dataset = dataset

    def train_dataloader(self) -> Any:
        return DataLoader(self.dataset, batch_size=2)


def split(dataset: Any, partitioner: ColumnPartitioner) -> FederatedDataModule:
    data = FederatedDataModule(OfUsers(dataset), partitioner)
    data.setup("fit")
    return data


def test_clients_by_a_column_have_its_names():
    users = Users(["eve", "bob", "eve", "ann", "bob", "eve"])
    data = split(users, ColumnPartitioner("user_id"))
    assert [data.client_name(k) for k in range(3)] == ["ann", "bob", "eve"]
    assert [part.tolist() for part in data.indices] == [[3], [1, 4], [0, 2, 5]]
    with pytest.warns(UserWarning, match=r"1 of 3 values of the column 'user_id' have fewer than 2 examples .* left out: ann"):
        some = split(users, ColumnPartitioner("user_id", min_examples=2))
    assert [some.client_name(k) for k in range(2)] == ["bob", "eve"]
    numbers = split(Subset(Users([7, 5, 7, 5]), [3, 0, 2]), ColumnPartitioner("user_id"))
    assert [part.tolist() for part in numbers.indices] == [[0], [1, 2]]


def test_a_hugging_face_column():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0], "label": [0, 1, 0], "writer": ["b", "a", "b"]})
    data = split(rows, ColumnPartitioner("writer"))
    assert [part.tolist() for part in data.indices] == [[1], [0, 2]]


def test_each_data_set_is_a_domain():
    joined = ConcatDataset([Users([1, 1]), Users([2, 2, 2])])
    data = split(joined, DomainPartitioner())
    assert [part.tolist() for part in data.indices] == [[0, 1], [2, 3, 4]]
    by_user = split(joined, ColumnPartitioner("user_id"))
    assert by_user.indices.sizes.tolist() == [2, 3]


class Named(Users):
    """With numbers for domains, and names for the numbers."""

    def __init__(self, domains: list[int], names: tuple[str, ...]) -> None:
        super().__init__([0] * len(domains))
        self.domains, self.domains_names = torch.tensor(domains), names


def test_domains_keep_their_names_in_parts_and_unions():
    one, other = Named([1, 0, 1], ("photo", "sketch")), Named([0, 1], ("art", "photo"))
    part = split(Subset(one, [0, 2]), DomainPartitioner())
    assert [part.client_name(k) for k in range(part.num_clients)] == ["sketch"]
    union = split(ConcatDataset([one, other]), DomainPartitioner())
    assert [union.client_name(k) for k in range(3)] == ["art", "photo", "sketch"]
    assert [own.tolist() for own in union.indices] == [[3], [1, 4], [0, 2]]


@pytest.mark.parametrize("column", [["a", None, "b"], [0.5, float("nan"), 1.0], [[1, 2]] * 3, torch.ones(3, 2)])
def test_columns_that_tell_no_clients_apart(column):
    with pytest.raises(
        DataError, match=r"The column 'user_id' of Users must have one value per example, all numbers or all texts"
    ):
        split(Users(column), ColumnPartitioner("user_id"))


@pytest.mark.parametrize("labels", [["a", "b"] * 20, [{}] * 40, [[1], [2, 3]] * 20, 7])
def test_what_is_called_labels_but_is_none(labels):
    class Odd(Listed):
        def __init__(self):
            super().__init__(torch.rand(40, 4), torch.zeros(40))
            self.targets = self.labels = labels

        def __len__(self):
            return 40

        def __getitem__(self, index):
            return self.inputs[index], 0

    data = FederatedDataModule(OfUsers(Odd()), IIDPartitioner(2), client_test=0.2)
    data.setup("fit")
    assert data.splits.test.sizes.tolist() == [4, 4]


def test_examples_without_a_label_of_minus_one():
    labels = torch.tensor([-1, 0, 1, -1] * 10)
    data = FederatedDataModule(OfUsers(TensorDataset(torch.rand(40, 4), labels)), IIDPartitioner(2), client_test=0.2)
    data.setup("fit")
    assert data.splits.test.sizes.tolist() == [4, 4]
    with pytest.raises(DataError, match=r"'data.public_share' needs labels of 0 and above, but the lowest is -1"):
        FederatedDataModule(OfUsers(TensorDataset(torch.rand(40, 4), labels)), IIDPartitioner(2), public_share=0.1).setup("fit")


@pytest.mark.parametrize("kind", ["joined", "read"])
def test_wrong_labels_of_datasets_that_transform_them(kind):
    class Shifted(Dataset):
        target_transform = staticmethod(lambda label: (label + 1) % 3)

        def __init__(self, known: bool) -> None:
            self.stored = [k % 3 for k in range(30)]
            if known:
                self.targets = self.stored

        def __len__(self):
            return 30

        def __getitem__(self, index):
            return torch.rand(4), self.target_transform(self.stored[index])

    dataset = ConcatDataset([Shifted(True), Subset(Shifted(True), range(30))]) if kind == "joined" else Shifted(False)
    data = FederatedDataModule(OfUsers(dataset), IIDPartitioner(2))
    data.setup("fit")
    mislabel(data, {0: 1.0}, seed=1)
    given = torch.cat([y for _, y in data.client_evaluation_view(0, "training").val_dataloader()])
    true = torch.tensor([dataset[int(k)][1] for k in data.indices[0]])
    assert (given != true).all()


def test_a_column_that_is_not_there():
    with pytest.raises(DataError, match=r"Users has no column 'city': an attribute of that name with one value for each"):
        split(Users([1, 2]), ColumnPartitioner("city"))
    with pytest.raises(DataError, match=r"No value of the column 'user_id' has 9 examples; the largest has 1"):
        split(Users([1, 2]), ColumnPartitioner("user_id", min_examples=9))


# ------------------------------------------------------------------ partitioners of a user's own


def test_a_partitioner_that_gives_what_is_not_there_or_twice():
    class Twice(Consecutive):
        def partition(self, num_examples, labels):
            return [torch.tensor([0, 1]), torch.tensor([1, 2])]

    with pytest.raises(DataError, match="Twice assigned example 1 more than once"):
        FederatedDataModule(Blobs(), Twice()).setup("fit")
    with pytest.raises(DataError, match=r"Consecutive returned indices from 0 to 40, but there are 40 examples to divide"):
        FederatedDataModule(Blobs(), Consecutive((41,))).setup("fit")


# ------------------------------------------------------------------ batches of one


def test_with_batchnorm_a_last_batch_of_one_is_left_out():
    module = Plain(batchnorm=True)
    run = federate(module, 2, data=Blobs(n=22), partitioner=Consecutive((11, 6, 5)), local=LocalTraining(max_epochs=1))
    assert run.global_step == 2  # batches of 5: 11 and 6 end on a batch of one
    data = FederatedDataModule(AtHand(n=22), Consecutive((11, 6, 5)))
    data.setup("fit")
    for one_by_one in (data, FederatedDataModule(Blobs(n=22), Consecutive((11, 6, 5)))):
        one_by_one.setup("fit")
        sizes = [[len(y) for _, y in one_by_one.client(k, 0, drop_single=True).train_dataloader()] for k in range(3)]
        assert sizes == [[5, 5], [5], [5]]
        assert [len(one_by_one.client(k, 0, drop_single=True).train_dataloader()) for k in range(3)] == [2, 1, 1]
        assert [len(y) for _, y in one_by_one.client(1, 0).train_dataloader()] == [5, 1]


def test_without_batchnorm_every_example_counts():
    one, other = Plain(), Plain()
    other.load_state_dict(one.state_dict())
    for module in (one, other):
        federate(module, 1, data=Blobs(n=11), partitioner=Consecutive((11,)))
    assert same_bits(weights(one), weights(other))


def test_a_client_of_one_example_and_batchnorm():
    with pytest.raises(DataError, match=r"Client 1 has a single training example, which BatchNorm cannot normalise"):
        federate(Plain(batchnorm=True), 1, data=Blobs(n=6), partitioner=Consecutive((5, 1)))
    federate(Plain(), 1, data=Blobs(n=6), partitioner=Consecutive((5, 1)))
    shared = FederatedDataModule(Blobs(n=60), Consecutive((20, 1)), public_share=0.1)
    trainer(1, FederatedOrchestrator()).fit(Plain(batchnorm=True), shared)  # with public examples it has more
