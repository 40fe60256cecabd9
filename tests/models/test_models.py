"""Networks against torchvision's, pretrained weights, and features that are computed once."""

import logging

import lightning as L
import pytest
import torch
import torchvision
from federations import Plain, federate, trainer, weights
from torch import nn
from torch.utils.data import TensorDataset
from torchvision.models.vgg import cfgs, make_layers

import fl_lightning as fl
from fl_lightning.functional.model_state import ModelState


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def test_sizes_and_shapes():
    """McMahan's 2NN and He's ResNet-18 as published; LeNet by the layers' own counts."""
    assert parameters(fl.MLP()) == 199_210
    assert parameters(fl.ResNet18(num_classes=1000)) == 11_689_512
    assert parameters(fl.ResNet18()) == 11_689_512 - 1000 * 513 + 10 * 513
    assert parameters(fl.LeNet()) == 44_426
    assert parameters(fl.LeNet(batch_norm=True)) == 44_426 + 2 * (6 + 16)
    for network, images in (
        (fl.LeNet(batch_norm=True), torch.rand(2, 1, 28, 28)),
        (fl.ResNet18(10), torch.rand(2, 3, 32, 32)),
        (fl.ResNet18(7, channels=1, stem="cifar"), torch.rand(2, 1, 28, 28)),
        (fl.LeNet(3, 32, 5), torch.rand(2, 3, 32, 32)),
        (fl.MLP(12, (), 4, 0.5), torch.rand(2, 3, 2, 2)),
    ):
        assert network(images).shape == (2, list(network.parameters())[-1].numel())


def test_the_thesis_stem_is_torchvisions():
    torch.manual_seed(0)
    ours = fl.ResNet18(10)
    theirs = torchvision.models.resnet18(num_classes=10)
    theirs.load_state_dict(ours.network.state_dict())
    images = torch.rand(3, 3, 40, 40)
    assert torch.equal(ours.eval()(images), theirs.eval()(images))
    small = fl.ResNet18(stem="cifar").network
    assert small.layer1(small.maxpool(small.conv1(torch.rand(1, 3, 32, 32)))).shape == (1, 64, 32, 32)


def test_weights_from_a_file_and_by_name(tmp_path, monkeypatch):
    theirs = torchvision.models.resnet18()
    path = tmp_path / "resnet.pt"
    torch.save(theirs.state_dict(), path)
    ours = fl.ResNet18(5, weights=str(path))
    assert torch.equal(ours.network.layer3[0].conv1.weight, theirs.layer3[0].conv1.weight)
    assert ours.network.fc.out_features == 5
    torch.save({"state_dict": theirs.state_dict()}, path)  # as Lightning writes it
    assert torch.equal(fl.ResNet18(5, weights=str(path)).network.conv1.weight, theirs.conv1.weight)
    monkeypatch.setattr(torchvision.models.ResNet18_Weights, "get_state_dict", lambda self, progress: theirs.state_dict())
    assert torch.equal(fl.ResNet18(weights="DEFAULT").network.conv1.weight, theirs.conv1.weight)


@pytest.mark.slow
def test_vgg_is_torchvisions_with_another_head():
    torch.manual_seed(0)
    ours = fl.VGG19(31, weights=None, pooled=2)
    theirs = make_layers(cfgs["E"])
    assert parameters(ours.backbone) == parameters(theirs)
    assert [layer.out_features for layer in ours.head.modules() if isinstance(layer, nn.Linear)] == [1024, 256, 31]
    theirs.load_state_dict(ours.backbone[0].state_dict())
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(ours.backbone(images), nn.AdaptiveAvgPool2d(2)(theirs(images)).flatten(1))
    assert not any(p.requires_grad for p in ours.backbone.parameters())
    assert torch.equal(ours.eval()(images), ours.head(ours.backbone(images)))


class Pictures(fl.ImageDataModule):
    def load(self):
        generator = torch.Generator().manual_seed(5)
        sets = [torch.randint(0, 256, (n, 3, 12, 12), dtype=torch.uint8, generator=generator) for n in (60, 30)]
        return tuple(TensorDataset(images, torch.arange(len(images)) % 3) for images in sets)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5))
        self.seen = 0

    def forward(self, images):
        self.seen += len(images)
        return self.layers(images)


def task() -> fl.ClassificationTask:
    torch.manual_seed(3)
    network = fl.FrozenBackbone(Counted(), nn.Linear(400, 3))
    return fl.ClassificationTask(network, 3, optimizer=lambda p: torch.optim.SGD(p, lr=0.05))


def pictures(**more) -> fl.FederatedDataModule:
    settings = {"batch_size": 7, **more.pop("images", {})}
    return fl.FederatedDataModule(Pictures(**settings), fl.DirichletPartitioner(3, 5.0, min_examples=5), **more)


def train(cache: bool, central: bool = False, **more) -> tuple[dict, dict, int, fl.FederatedDataModule]:
    module = task()
    images = {"mean": [0.3] * 3, "std": [0.2] * 3, **more.pop("images", {})}
    data = pictures(client_test=0.2, images=images, **more)
    federation = fl.FederatedOrchestrator(local=fl.LocalTraining(max_epochs=2), enabled=not central)
    run = trainer(3, federation, *([fl.FeatureCache()] if cache else []))
    run.fit(module, data)
    return weights(module), dict(run.callback_metrics), module.network.backbone.seen, data


@pytest.mark.parametrize("central", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_kept_features_give_the_same_losses(central):
    ours, metrics, computed, data = train(True, central)
    theirs, expected, _, _ = train(False, central)
    assert computed == 91  # each example of both sets once, and one before, to see what they take; the clients' copies none
    for name, value in expected.items():
        if "seconds" not in name:
            torch.testing.assert_close(metrics[name], value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert not torch.equal(ours["network.head.weight"], task().network.head.weight)
    assert data.datamodule._train.tensors[0].dtype == torch.uint8  # given back
    assert data.client_datasets.source.dataset is data.datamodule._train


class Other(TensorDataset):
    """Is read one by one, by a datamodule that is not one of images."""

    def __getitem__(self, index):
        return super().__getitem__(index)


def test_what_changes_and_other_data_are_not_kept(caplog):
    wrapped = L.LightningDataModule.from_datasets(Other(torch.rand(12, 3, 12, 12), torch.arange(12) % 3), batch_size=4)
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        federate(Plain(), 1, fl.FeatureCache())
        assert "recomputed in every epoch" not in caplog.text
        train(True, images={"augmentation": nn.Identity()})
        assert "not cached, but recomputed in every epoch: 'data.datamodule.augmentation' changes the images" in caplog.text
        train(True, feature_noise=0.1)
        assert "not cached, but recomputed in every epoch: 'data.feature_noise' changes the images" in caplog.text
        federate(task(), 1, fl.FeatureCache(), data=wrapped, partitioner=fl.IIDPartitioner(2))
        assert "LightningDataModule is not an ImageDataModule" in caplog.text


def test_what_never_changes_is_neither_sent_nor_aggregated():
    module = task()
    run = trainer(1, fl.FederatedOrchestrator())
    run.fit(module, pictures())
    head = sum(p.numel() for p in module.network.head.parameters())
    assert float(run.callback_metrics["federation/bytes_up"]) == 3 * 4 * head
    state = ModelState(module)
    assert state.num_parameters == head
    other = task()
    with torch.no_grad():
        module.network.backbone.layers[0].weight.fill_(2.0)
        module.network.backbone.layers[1].running_mean.fill_(3.0)
    ModelState(other).copy_from(state.tensors(), state.layout)
    assert bool((other.network.backbone.layers[0].weight == 2).all())
    assert bool((other.network.backbone.layers[1].running_mean == 3).all())


def test_a_backbone_that_is_thawed_is_trained_and_sent(caplog):
    module = task()
    module.network.backbone.layers[0].weight.requires_grad_(True)
    before = module.network.backbone.layers[0].weight.detach().clone()
    run = trainer(2, fl.FederatedOrchestrator(), fl.FeatureCache())
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        run.fit(module, pictures())
    assert "some of its parameters are trained" in caplog.text
    assert not torch.equal(module.network.backbone.layers[0].weight, before)
    assert ModelState(module).num_parameters == parameters(module.network.head) + before.numel()


def test_features_that_take_too_much_memory_are_not_kept(caplog):
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        trainer(1, fl.FederatedOrchestrator(), fl.FeatureCache(memory_limit=1e-6)).fit(task(), pictures())
    assert "those of 90 images take 0.0 GiB, above 'feature_cache.memory_limit' 1e-06" in caplog.text


@pytest.mark.parametrize("precision", [pytest.param("64-true", marks=pytest.mark.slow), "bf16-true"])
def test_features_in_the_models_precision(precision):
    run = trainer(1, fl.FederatedOrchestrator(), fl.FeatureCache(), precision=precision)
    run.fit(task(), pictures())
    assert 0 <= run.callback_metrics["val_accuracy"] <= 1
