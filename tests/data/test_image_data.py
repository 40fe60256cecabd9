"""Images in folders and in torchvision's formats: what is read, how it is scaled, and what a user is told."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import torch
from federations import trainer
from PIL import Image
from small_images import paint, write_torchvision_sets
from torch import nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from fl_lightning import (
    CIFAR10DataModule,
    CIFAR100DataModule,
    ClassificationTask,
    ConfigurationError,
    DataError,
    DomainPartitioner,
    FashionMNISTDataModule,
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    ImageFolderDataModule,
    LeNet,
    LocalTraining,
    RandomCropFlip,
    SVHNDataModule,
    TableDataModule,
    USPSDataModule,
)
from fl_lightning.data.augmentation import augment


@pytest.fixture
def by_class(tmp_path):
    for k, name in enumerate(("cat", "dog", "emu")):
        paint(tmp_path / "images" / name, 6 + k, seed=k)
    return tmp_path / "images"


@pytest.fixture
def by_domain(tmp_path):
    for d, domain in enumerate(("amazon", "dslr")):
        for k, name in enumerate(("cat", "dog")):
            paint(tmp_path / "domains" / domain / "images" / name, 5 + 3 * d, seed=10 * d + k)
    return tmp_path / "domains"


def set_up(**settings) -> ImageFolderDataModule:
    data = ImageFolderDataModule(**settings)
    data.setup("fit")
    return data


CLASSES = "fields: [{name: animal, type: string, constraints: {enum: [emu, dog, cat, fox]}}]\ntarget: animal\n"


def test_the_classes_of_folders_are_those_of_a_schema_in_its_order(by_class, tmp_path):
    (tmp_path / "schema.yaml").write_text(CLASSES)
    schema = str(tmp_path / "schema.yaml")
    data = set_up(root=str(by_class), schema=schema)
    assert data.train_dataloader().dataset.classes == ("emu", "dog", "cat", "fox")
    assert torch.bincount(data.train_dataloader().dataset.tensors[1]).tolist() == [8, 7, 6]
    assert data.compare_with_schema() == [f"'{by_class}' has 21 images: 8 of 'emu', 7 of 'dog', 6 of 'cat', 0 of 'fox'."]
    assert set_up(root=str(by_class)).compare_with_schema() == []
    paint(by_class / "gnu", 2)
    with pytest.raises(DataError, match=r"has a folder of the class 'gnu', which is not one of .* the schema's classes: emu, "):
        set_up(root=str(by_class), schema=schema)


def test_schemas_that_do_not_fit_the_data(by_class, tmp_path):
    path = tmp_path / "schema.yaml"
    path.write_text(CLASSES)
    with pytest.raises(ConfigurationError, match=r"'data\.datamodule\.classes' must be left out with a 'schema'"):
        ImageFolderDataModule(str(by_class), schema=str(path), classes=["cat", "dog"])
    with pytest.raises(ConfigurationError, match=r"'data\.datamodule\.schema' must be the file of a schema with features"):
        TableDataModule("own.csv", schema=str(path))
    path.write_text("fields: [{name: age, type: number}]\n")
    with pytest.raises(ConfigurationError, match=r"'data\.datamodule\.schema' must be a schema whose target has classes"):
        ImageFolderDataModule(str(by_class), schema=str(path))


def test_a_folder_for_each_client_by_name(by_domain, by_class):
    """The same images as in one folder of domains, under other names."""
    named = set_up(root={"site 2": str(by_domain / "amazon"), "site 1": by_domain / "dslr" / "images"})
    whole = set_up(root=by_domain)
    sets = [data.train_dataloader().dataset for data in (named, whole)]
    assert sets[0].domains_names == ("site 1", "site 2")
    for own, other in ((1, 0), (0, 1)):
        assert torch.equal(*(each.tensors[0][each.domains == k] for each, k in zip(sets, (own, other), strict=True)))
    data = FederatedDataModule(ImageFolderDataModule(root=named.root), DomainPartitioner())
    data.setup("fit")
    assert [(data.client_name(k), data.num_examples(k)) for k in range(2)] == [("site 1", 16), ("site 2", 10)]
    for wrong, message in (
        ({"a": "no"}, "'no' is not a folder"),
        ({}, "'data.datamodule.root' must be a folder, or a folder f"),
    ):
        with pytest.raises((ConfigurationError, DataError), match=message):
            set_up(root=wrong)


def test_a_domain_may_lack_a_class(by_domain, tmp_path):
    """Hospitals differ in what they see; a folder that is misspelt is named in the warning, too."""
    paint(by_domain / "dslr" / "images" / "emu", 3)
    with pytest.warns(UserWarning, match="The domains have different classes: 'amazon' has no folder emu. If a folder is miss"):
        data = FederatedDataModule(set_up(root=str(by_domain), test_share=0.0), DomainPartitioner())
    data.setup("fit")
    whole = data.datamodule.train_dataloader().dataset
    assert whole.classes == ("cat", "dog", "emu")
    assert [set(whole.tensors[1][whole.domains == k].tolist()) for k in (0, 1)] == [{0, 1}, {0, 1, 2}]
    (by_domain / "amazon" / "images" / "emu").mkdir()  # one without images is as good
    assert len(set_up(root=str(by_domain), test_share=0.0).train_dataloader().dataset) == data.indices.sizes.sum()


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([127.0], [0.5], r"'data.datamodule.mean' must be between 0 and 1 for each channel, since images are in \[0, 1\]"),
        ([0.5], [50.0], r"'data.datamodule.std' must be between 0 and 1 for each channel.*\(divide by 255\), but is \[50.0\]"),
    ],
)
def test_means_in_bytes_are_refused(mean, std, message, by_class):
    with pytest.raises(ConfigurationError, match=message):
        set_up(root=str(by_class), mean=mean, std=std)


def batches(loader) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(labels)


# ------------------------------------------------------------------ folders


def test_a_folder_by_class_is_what_pillow_reads(by_class):
    data = set_up(root=str(by_class), test_share=0.25)
    held, labels = batches(data.val_dataloader())
    assert held.dtype == torch.uint8
    assert torch.bincount(labels).tolist() == [1, 2, 2]  # a quarter of 6, 7 and 8: 1.5, 1.75, 2, five in all
    train, train_labels = batches(data.train_dataloader())
    assert torch.bincount(train_labels + 0).tolist() == [5, 5, 6]
    read = {np.array(Image.open(path)).tobytes() for path in by_class.rglob("*.png")}
    ours = {image.permute(1, 2, 0).numpy().tobytes() for image in torch.cat([train, held])}
    assert ours == read
    assert data.origin.endswith("images (16 + 5 images, 3 classes, no domains)")


def test_domains_are_clients_by_name(by_domain):
    base = ImageFolderDataModule(str(by_domain), image_size=16, channels=1)
    data = FederatedDataModule(base, DomainPartitioner(), client_test=0.2, server_set="clients")
    data.setup("fit")
    assert [data.client_name(k) for k in range(data.num_clients)] == ["amazon", "dslr"]
    assert [data.num_examples(k) for k in range(2)] == [8, 13]  # 10 and 16 without their test parts of 2 and 3
    assert not base.origin.startswith("not loaded")
    images, _ = batches(data.val_dataloader())
    assert images.shape == (5, 1, 16, 16)
    test = data.splits.test
    assert torch.bincount(base._train.domains[test[1]]).tolist() == [0, 3]
    several = FederatedDataModule(base, DomainPartitioner(clients_per_domain=2))
    several.setup("fit")
    assert [several.client_name(k) for k in range(4)] == ["amazon 0", "amazon 1", "dslr 0", "dslr 1"]


def test_train_and_test_folders(by_class, tmp_path):
    for name in ("cat", "dog"):
        paint(tmp_path / "split" / "train" / name, 4)
        paint(tmp_path / "split" / "test" / name, 2)
    data = set_up(root=str(tmp_path / "split"))
    assert len(batches(data.train_dataloader())[0]) == 8
    assert len(batches(data.test_dataloader())[0]) == 4
    with pytest.raises(DataError, match=r"test' has the classes cat, dog, but the training images have cat, dog, emu. Give"):
        set_up(root=str(by_class), test_root=str(tmp_path / "split" / "test"))


def test_a_validation_folder_beside_the_test_folder(tmp_path):
    """In any case, and by other common names."""
    root = tmp_path / "split"
    for part, count in (("Training", 4), ("VAL", 3), ("testing", 2)):
        for name in ("cat", "dog"):
            paint(root / part / name, count)
    data = set_up(root=str(root))
    assert data.origin.endswith("Training (8 + 6 + 4 images, 2 classes, no domains)")
    assert len(batches(data.val_dataloader())[0]) == 6
    assert len(batches(data.test_dataloader())[0]) == len(batches(data.predict_dataloader())[0]) == 4
    with pytest.raises(
        DataError,
        match=r"'data.datamodule.test_root' is .*VAL, which is inside 'root' .*split, so the federation would train on",
    ):
        set_up(root=str(root), test_root=str(root / "VAL"))


def test_images_of_sixteen_bits(tmp_path):
    values = np.array([[0, 257, 65535]], dtype=np.uint16)
    for name in ("cat", "dog"):
        (tmp_path / "deep" / name).mkdir(parents=True)
        Image.fromarray(values).save(tmp_path / "deep" / name / "0.png")
    data = set_up(root=str(tmp_path / "deep"), channels=1)
    assert data._train.tensors[0][0].flatten().tolist() == [0, 1, 255]
    Image.fromarray(values.astype(np.float32)).save(tmp_path / "deep" / "cat" / "1.tiff")
    with pytest.raises(DataError, match=r"1 of 3 images cannot be read: .*1.tiff \(its pixels are not whole numbers"):
        set_up(root=str(tmp_path / "deep"), channels=1)


def test_images_of_twelve_bits(tmp_path):
    """They lie in 16 bits, of which they use 12: without a word, 16 of their grey levels would be left."""
    values = np.linspace(0, 4095, 64).astype(np.uint16).reshape(8, 8)
    for name in ("cat", "dog"):
        (tmp_path / "deep" / name).mkdir(parents=True)
        Image.fromarray(values).save(tmp_path / "deep" / name / "0.png")
    with pytest.warns(
        UserWarning, match=r"value 4095, so that 16 of 256 grey .* If the camera has 12 bits, set .* to 4095, for"
    ):
        set_up(root=str(tmp_path / "deep"), channels=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = set_up(root=str(tmp_path / "deep"), channels=1, white=4095)
    assert data._train.tensors[0][0, 0].numpy().tolist() == (values.astype(int) * 255 // 4095).tolist()
    with pytest.raises(DataError, match=r"its brightest pixel is 4095, but 'data.datamodule.white' is 1023"):
        set_up(root=str(tmp_path / "deep"), channels=1, white=1023)
    with pytest.raises(ConfigurationError, match=r"'data.datamodule.white' must be 1 to 65535"):
        ImageFolderDataModule(str(tmp_path), white=0)


@pytest.mark.parametrize("memory", [4.0, 0.0], ids=["in memory", "from disk"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_cameras_say(orientation, memory, tmp_path):
    """A picture of 3 x 2 pixels, stored as each orientation of EXIF asks, is read as it was."""
    right = np.array([[10, 60, 110], [160, 210, 250]], dtype=np.uint8)
    stored = {
        1: right,
        2: right[:, ::-1],
        3: right[::-1, ::-1],
        4: right[::-1],
        5: right.T,
        6: np.rot90(right, 1),
        7: right[::-1, ::-1].T,
        8: np.rot90(right, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("cat", "dog"):
        (tmp_path / "turned" / name).mkdir(parents=True)
        Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "turned" / name / "0.png", exif=exif)
        Image.fromarray(right).save(tmp_path / "turned" / name / "1.png")
    data = set_up(root=str(tmp_path / "turned"), channels=1, memory_limit=memory)
    for image, _ in (data._train[k] for k in range(4)):
        assert image[0].tolist() == right.tolist()


def test_hidden_folders_and_those_that_could_be_anything(tmp_path):
    root = tmp_path / "split"
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            paint(root / part / name, 2)
    (root / ".ipynb_checkpoints").mkdir()
    data = set_up(root=str(root))
    assert data.origin.endswith("train (4 + 4 images, 2 classes, no domains)")
    paint(root / "unlabelled" / "cat", 1)
    with pytest.raises(DataError, match=r"contains unlabelled next to 'train' and 'test', .* Set 'data.datamodule.root'"):
        set_up(root=str(root))


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_images_take_the_clients_precision(by_class, precision):
    data = FederatedDataModule(ImageFolderDataModule(str(by_class), test_share=0.2, batch_size=5), IIDPartitioner(2))
    run = trainer(1, FederatedOrchestrator(local=LocalTraining(precision=precision)), precision=precision)
    run.fit(ClassificationTask(LeNet(3, 16, 3), num_classes=3), data)
    assert 0 <= run.callback_metrics["val_accuracy"] <= 1


def test_folders_without_domains(by_class):
    for limit in (4.0, 0.0):
        data = FederatedDataModule(ImageFolderDataModule(str(by_class), memory_limit=limit), DomainPartitioner())
        with pytest.raises(DataError, match=r"examples have no domains. Put each client's files.*partitioner"):
            data.setup("fit")


def test_without_a_test_set_lightning_sees_none(by_class):
    data = FederatedDataModule(ImageFolderDataModule(str(by_class), image_size=16), IIDPartitioner(2))
    module = ClassificationTask(LeNet(3, 16, 3), num_classes=3)
    run = trainer(1, FederatedOrchestrator())
    run.fit(module, data)
    assert not data.has_validation_set
    assert "val_accuracy" not in run.callback_metrics


def test_from_disk_is_as_from_memory(by_class):
    memory = set_up(root=str(by_class), test_share=0.2, batch_size=5)
    disk = set_up(root=str(by_class), test_share=0.2, batch_size=5, memory_limit=0.0)
    assert "from disk" in disk.origin
    pairs = zip(batches(memory.val_dataloader()), batches(disk.val_dataloader()), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    results = []
    for data in (memory, disk):
        torch.manual_seed(0)
        module = ClassificationTask(LeNet(3, 16, 3), num_classes=3)
        federated = FederatedDataModule(data, IIDPartitioner(2), client_test=0.2, feature_noise=0.0)
        trainer(2, FederatedOrchestrator()).fit(module, federated)
        results.append(torch.cat([p.flatten() for p in module.parameters()]))
    assert torch.equal(*results)


@pytest.mark.parametrize("unreadable", ["error", "skip"])
@pytest.mark.parametrize("limit", [4.0, 0.0])
def test_images_of_several_sizes_need_one(by_class, limit, unreadable):
    paint(by_class / "cat", 1, size=20, kind="bmp")
    with pytest.raises(DataError, match=r"different sizes: .* Set 'data.datamodule.image_size' to resize all of them"):
        set_up(root=str(by_class), memory_limit=limit, unreadable=unreadable)
    data = set_up(root=str(by_class), image_size=8, memory_limit=limit, unreadable=unreadable)
    assert data.train_dataloader().dataset[0][0].shape == (3, 8, 8)


@pytest.mark.parametrize("limit", [4.0, 0.0])
def test_an_image_that_is_not_one(by_class, limit):
    (by_class / "dog" / "0.png").write_text("no picture")
    whole = (by_class / "emu" / "1.png").read_bytes()
    with pytest.raises(DataError, match=r"1 of 21 images cannot be read: .*dog/0.png \(not an image\). Fix or remove them"):
        set_up(root=str(by_class), memory_limit=limit)
    (by_class / "emu" / "1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match=r"2 of 21 images cannot be read: .*0.png.*1.png.*They are skipped"):
        data = set_up(root=str(by_class), memory_limit=limit, unreadable="skip")
    _, labels = batches(data.train_dataloader())
    assert torch.bincount(labels).tolist() == [6, 6, 7]


def test_a_half_image_found_while_training_from_disk(by_class):
    whole = (by_class / "emu" / "1.png").read_bytes()
    (by_class / "emu" / "1.png").write_bytes(whole[: len(whole) // 2])
    data = set_up(root=str(by_class), memory_limit=0)  # the header is fine
    with pytest.raises(DataError, match=r"Cannot read .*emu/1.png .* set 'data.datamodule.unreadable' to 'skip'"):
        batches(data.train_dataloader())


def test_folders_that_are_not_of_the_form(tmp_path, by_domain):
    with pytest.raises(DataError, match=r"is not a folder. Set 'data.datamodule.root'"):
        set_up(root=str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty' contains no folders"):
        set_up(root=str(tmp_path / "empty"))
    paint(tmp_path / "one" / "cat", 2)
    with pytest.raises(DataError, match=r"one' contains the single class 'cat'"):
        set_up(root=str(tmp_path / "one"))
    (tmp_path / "one" / "dog").mkdir()
    with pytest.raises(DataError, match=r"dog' contains no images \(.jpg"):
        set_up(root=str(tmp_path / "one"))
    (tmp_path / "no images" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no images' contains no images \(.jpg.*Add some, or remove the folder"):
        set_up(root={"a": str(tmp_path / "no images"), "b": str(tmp_path / "one")})
    (by_domain / "webcam").mkdir()
    with pytest.raises(DataError, match=r"is nested more deeply.*: '.*' contains folders. Remove 'webcam', which is empty"):
        set_up(root=str(by_domain))
    paint(tmp_path / "far" / "a" / "b" / "cat", 1)
    paint(tmp_path / "far" / "a" / "b" / "dog", 1)
    paint(tmp_path / "far" / "a" / "c" / "cat", 1)
    with pytest.raises(DataError, match=r"is nested more deeply than root/domain/class/image: 'b' contains folders"):
        set_up(root=str(tmp_path / "far"))
    paint(tmp_path / "few" / "cat", 1)
    paint(tmp_path / "few" / "dog", 1)
    with pytest.raises(DataError, match=r"'data.datamodule.test_share' is 0.99, which leaves none of the 2 images to train on"):
        set_up(root=str(tmp_path / "few"), test_share=0.99)
    paint(tmp_path / "bad" / "cat", 2)
    (tmp_path / "bad" / "dog").mkdir()
    (tmp_path / "bad" / "dog" / "0.png").write_text("")
    with (
        pytest.raises(DataError, match=r"Without them class 'dog' has no images left"),
        pytest.warns(UserWarning, match="are skipped"),
    ):
        set_up(root=str(tmp_path / "bad"), unreadable="skip")
    (tmp_path / "bad" / "cat" / "0.png").write_text("")
    (tmp_path / "bad" / "cat" / "1.png").write_text("")
    with pytest.raises(DataError, match=r"None of the 3 images can be read, such as .* \(cannot identify"):
        set_up(root=str(tmp_path / "bad"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test_share": 1.0}, "'data.datamodule.test_share' must be at least 0 and below 1"),
        ({"image_size": 0}, "'data.datamodule.image_size' must be 1 or above, or null"),
        ({"memory_limit": -1}, "'data.datamodule.memory_limit' must be 0 or above"),
        ({"num_workers": -1}, "'data.datamodule.num_workers' must be 0 or above"),
        ({"eval_batch_size": 0}, "'data.datamodule.eval_batch_size' must be 1 or above"),
        ({"mean": [0.5]}, "'data.datamodule.std' must be above 0, with one value for each value of 'mean'"),
        ({"mean": [0.5], "std": [0.5]}, "'data.datamodule.mean' must be one number for each of 3 channels"),
        ({"mean": [0.5] * 3, "std": [0.5, 0.5, 0]}, "'data.datamodule.std' must be above 0"),
    ],
)
def test_settings_of_images(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        ImageFolderDataModule("x", **settings)


# ------------------------------------------------------------------ torchvision's formats


@pytest.fixture
def small_sets(tmp_path, monkeypatch):
    return write_torchvision_sets(tmp_path / "data", monkeypatch)


@pytest.mark.parametrize(
    ("kind", "shape", "train"),
    [
        (FashionMNISTDataModule, (1, 28, 28), 12),
        (CIFAR10DataModule, (3, 32, 32), 60),
        (CIFAR100DataModule, (3, 32, 32), 12),
        (SVHNDataModule, (3, 32, 32), 12),
        (USPSDataModule, (1, 16, 16), 12),
    ],
)
def test_torchvision_sets_give_what_torchvision_gives(kind, shape, train, small_sets):
    data = kind(small_sets, batch_size=7)
    data.prepare_data()
    data.setup("fit")
    images, labels = batches(data.val_dataloader())
    assert images.dtype == torch.uint8
    assert images.shape == (12, *shape)
    theirs = data.open(train=False)
    assert len(data.open(train=True)) == train == len(batches(data.train_dataloader())[0])
    ours = data.on_after_batch_transfer([images, labels], 0)[0]
    for position in range(12):
        picture, label = theirs[position]
        expected = F.normalize(F.to_dtype(F.to_image(picture), torch.float32, scale=True), list(kind.MEAN), list(kind.STD))
        assert int(labels[position]) == int(label)
        torch.testing.assert_close(ours[position], expected)
    assert data.origin.startswith(kind.__name__.removesuffix("DataModule"))


def test_a_set_that_cannot_be_had(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("Network is unreachable") if kwargs.get("download") else RuntimeError("Dataset not found")

    monkeypatch.setattr("torchvision.datasets.CIFAR10", no_network)
    data = CIFAR10DataModule(str(tmp_path))
    data.prepare_data()
    with pytest.raises(DataError, match=r"CIFAR10 is not in .* the download failed \(OSError: Network is unreachable\)"):
        data.setup("fit")


def test_svhn_without_scipy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"needs the package scipy: pip install 'fl_lightning\[svhn\]'"):
        SVHNDataModule(str(tmp_path)).setup("fit")


# ------------------------------------------------------------------ what is done to a batch


class Negative(nn.Module):
    def forward(self, image):
        assert image.ndim == 3
        return 1 - image


class Recorded(ClassificationTask):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = {"train": [], "val": []}

    def __deepcopy__(self, memo):
        return self  # the clients' copy is this one, too

    def training_step(self, batch, batch_idx):
        self.seen["train"].append(batch[0].clone())
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.seen["val"].append(batch[0].clone())
        return super().validation_step(batch, batch_idx)


def test_training_images_alone_are_augmented_and_all_normalised(by_class):
    mean, std = [0.2, 0.4, 0.6], [0.5, 0.25, 0.1]
    data = ImageFolderDataModule(str(by_class), test_share=0.25, mean=mean, std=std, augmentation=Negative(), batch_size=4)
    module = Recorded(LeNet(3, 16, 3), num_classes=3)
    trainer(1).fit(module, data)
    for part, expect in (("train", lambda x: 1 - x), ("val", lambda x: x)):
        seen = torch.cat(module.seen[part])
        tensors = (data._train if part == "train" else data._test).tensors[0]
        wanted = F.normalize(expect(tensors / 255), mean, std)
        assert {tuple(x.flatten()[:9].mul(1e4).round().tolist()) for x in seen} <= {
            tuple(x.flatten()[:9].mul(1e4).round().tolist()) for x in wanted
        }


def test_torchvisions_transforms_draw_for_each_image():
    torch.manual_seed(0)
    images = torch.arange(4.0).expand(40, 1, 1, 4)
    flipped = augment(images, v2.RandomHorizontalFlip(0.5))[:, 0, 0, 0] == 3
    assert 5 < int(flipped.sum()) < 35
    assert augment(torch.rand(3, 1, 4, 4), v2.RandomHorizontalFlip()).shape == (3, 1, 4, 4)


def test_random_crops_are_windows_of_the_padded_image():
    torch.manual_seed(0)
    images = torch.rand(30, 2, 5, 6)
    changed = RandomCropFlip(padding=2)(images)
    padded = nn.functional.pad(images, [2] * 4)
    places = set()
    for before, after in zip(padded, changed, strict=True):
        windows = {(top, left): before[:, top : top + 5, left : left + 6] for top in range(5) for left in range(5)}
        found = [
            (place, flip) for place, w in windows.items() for flip in (0, 1) if torch.equal(after, w.flip(2) if flip else w)
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 15
    assert {flip for _, flip in places} == {0, 1}
    assert torch.equal(RandomCropFlip(0, 0.0)(images), images)
    with pytest.raises(ConfigurationError, match="'padding' must be 0 or above"):
        RandomCropFlip(-1)
    with pytest.raises(ConfigurationError, match=r"'flip' must be in \[0, 1\]"):
        RandomCropFlip(1, 2)


def test_a_model_with_more_classes_than_the_data(by_class):
    data = FederatedDataModule(ImageFolderDataModule(str(by_class), test_share=0.2, batch_size=5), IIDPartitioner(2))
    run, module = trainer(1, FederatedOrchestrator()), ClassificationTask(LeNet(3, 16, 10))
    with pytest.warns(UserWarning, match=r"labels go from 0 to 2, but the model has 10 classes. .* 'model.num_classes'"):
        run.fit(module, data)
    assert run.callback_metrics["val_f1/9"] == 0


def test_a_network_for_other_images(by_class):
    data = FederatedDataModule(ImageFolderDataModule(str(by_class), test_share=0.2, batch_size=5), IIDPartitioner(2))
    with pytest.raises(
        ConfigurationError, match=r"LeNet cannot take inputs of shape \(\d, 3, 16, 16\): .* Change 'model.network'"
    ):
        trainer(1, FederatedOrchestrator()).fit(ClassificationTask(LeNet(1, 16, 3), 3), data)
    with pytest.raises(
        ConfigurationError, match=r"LeNet returns outputs of shape \(\d, 4\) for \d inputs, but the task has 3 classes"
    ):
        trainer(1, FederatedOrchestrator()).fit(ClassificationTask(LeNet(3, 16, 4), 3), data)
