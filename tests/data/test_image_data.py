"""Images in folders and in torchvision's formats: what is read, how it is scaled, and what a user is told."""

import shutil
import sys

import numpy as np
import pytest
import torch
from federations import ready, trainer
from PIL import Image
from small_images import by_class, by_domain, paint, write_torchvision_sets
from torch import nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import fl_lightning as fl
from fl_lightning.data.in_memory import augment


@pytest.fixture
def classes(tmp_path):
    return by_class(tmp_path / "images")


@pytest.fixture
def domains(tmp_path):
    return by_domain(tmp_path / "domains")


def set_up(root, **settings) -> fl.ImageFolderDataModule:
    return ready(fl.ImageFolderDataModule(root, **settings))


def batches(loader) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(labels)


def test_a_domain_may_lack_a_class(domains):
    """Hospitals differ in what they see; a folder that is misspelt is named in the warning, too."""
    paint(domains / "dslr" / "images" / "emu", 3)
    with pytest.warns(UserWarning, match="The domains have different classes: 'amazon' has no folder emu. If a folder is miss"):
        data = fl.FederatedDataModule(set_up(domains, test_share=0.0), fl.DomainPartitioner())
    data.setup("fit")
    whole = data.datamodule.train_dataloader().dataset
    assert whole.classes == ("cat", "dog", "emu")
    assert [set(whole.tensors[1][whole.domains == k].tolist()) for k in (0, 1)] == [{0, 1}, {0, 1, 2}]
    (domains / "amazon" / "images" / "emu").mkdir()  # one without images is as good
    assert len(set_up(domains, test_share=0.0).train_dataloader().dataset) == data.indices.sizes.sum()


# ------------------------------------------------------------------ folders


def test_a_folder_by_class_is_what_pillow_reads(classes):
    data = set_up(classes, test_share=0.25)
    held, labels = batches(data.val_dataloader())
    assert held.dtype == torch.uint8
    assert torch.bincount(labels).tolist() == [1, 2, 2]  # a quarter of 6, 7 and 8: 1.5, 1.75, 2, five in all
    train, train_labels = batches(data.train_dataloader())
    assert torch.bincount(train_labels + 0).tolist() == [5, 5, 6]
    read = {np.array(Image.open(path)).tobytes() for path in classes.rglob("*.png")}
    ours = {image.permute(1, 2, 0).numpy().tobytes() for image in torch.cat([train, held])}
    assert ours == read
    assert data.origin.endswith("images (16 + 5 images, 3 classes, no domains)")
    assert not fl.FederatedDataModule(set_up(classes), fl.IIDPartitioner(2)).has_validation_set


def test_domains_are_clients_by_name(domains):
    base = fl.ImageFolderDataModule(str(domains), image_size=16, channels=1)
    data = ready(fl.FederatedDataModule(base, fl.DomainPartitioner(), client_test=0.2, server_set="clients"))
    assert [data.client_name(k) for k in range(data.num_clients)] == ["amazon", "dslr"]
    assert [data.num_examples(k) for k in range(2)] == [8, 13]  # 10 and 16 without their test parts of 2 and 3
    assert not base.origin.startswith("not loaded")
    images, _ = batches(data.val_dataloader())
    assert images.shape == (5, 1, 16, 16)
    assert torch.bincount(base._train.domains[data.splits.test[1]]).tolist() == [0, 3]
    several = ready(fl.FederatedDataModule(base, fl.DomainPartitioner(clients_per_domain=2)))
    assert [several.client_name(k) for k in range(4)] == ["amazon 0", "amazon 1", "dslr 0", "dslr 1"]


def test_folders_for_training_validation_and_test(tmp_path):
    """In any case, and by other common names; hidden ones are nothing."""
    for part, count in (("Training", 4), ("VAL", 3), ("testing", 2)):
        for name in ("cat", "dog"):
            paint(tmp_path / "split" / part / name, count)
    (tmp_path / "split" / ".ipynb_checkpoints").mkdir()
    data = set_up(tmp_path / "split")
    assert data.origin.endswith("Training (8 + 6 + 4 images, 2 classes, no domains)")
    assert [len(batches(each)[0]) for each in (data.train_dataloader(), data.val_dataloader())] == [8, 6]
    assert len(batches(data.test_dataloader())[0]) == len(batches(data.predict_dataloader())[0]) == 4
    shutil.rmtree(tmp_path / "split" / "VAL")
    assert len(batches(set_up(tmp_path / "split").val_dataloader())[0]) == 4


def write_deep(root, values):
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        Image.fromarray(values).save(root / name / "0.png")
    return root


@pytest.mark.parametrize("most", [4095, 65535])
def test_images_of_sixteen_bits(most, tmp_path):
    """Also of cameras that use 12 of them: white must be stated, so that their grey levels stay."""
    values = np.linspace(0, most, 64).astype(np.uint16).reshape(8, 8)
    root = write_deep(tmp_path / "deep", values)
    for white in (None, 1023):
        with pytest.raises(
            fl.DataError, match=rf"from 0 to {most}, but 'data.datamodule.white' is {white}; set it to the value"
        ):
            set_up(root, channels=1, white=white)
    data = set_up(root, channels=1, white=most)
    assert data._train.tensors[0][0, 0].numpy().tolist() == (values.astype(int) * 255 // most).tolist()
    Image.fromarray(np.zeros((8, 8), np.float32)).save(root / "cat" / "1.tiff")
    with pytest.raises(
        fl.DataError, match=r"1 of 3 images cannot be read: .*1.tiff \(its pixels of more than 8 bits .* or convert"
    ):
        set_up(root, channels=1, white=most)


@pytest.mark.parametrize("memory", [4.0, 0.0], ids=["in memory", "from disk"])
def test_images_are_turned_as_cameras_say(memory, tmp_path):
    """A picture of 3 x 2 pixels, stored as each orientation of EXIF asks, is read as it was."""
    right = np.array([[10, 60, 110], [160, 210, 250]], dtype=np.uint8)
    turned = [right, right[:, ::-1], right[::-1, ::-1], right[::-1], right.T, np.rot90(right, 1), right[::-1, ::-1].T]
    write_deep(tmp_path / "turned", right)
    for orientation, stored in enumerate([*turned, np.rot90(right, -1)], 1):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "turned" / "cat" / f"{orientation}.png", exif=exif)
    data = set_up(tmp_path / "turned", channels=1, memory_limit=memory)
    assert len(data._train) == 10
    assert all(data._train[k][0][0].tolist() == right.tolist() for k in range(10))


def fit(data, module, **flags):
    local = fl.LocalTraining(max_epochs=2, precision=flags.get("precision", "auto"))
    run = trainer(1, fl.FederatedOrchestrator(local=local), **flags)
    run.fit(module, fl.FederatedDataModule(data, fl.IIDPartitioner(2)))
    return run.callback_metrics


@pytest.mark.parametrize("precision", ["64-true", pytest.param("bf16-true", marks=pytest.mark.slow), "bf16-mixed"])
def test_images_take_the_clients_precision(classes, precision):
    data = fl.ImageFolderDataModule(str(classes), test_share=0.2, batch_size=5)
    metrics = fit(data, fl.ClassificationTask(fl.LeNet(3, 16, 3), num_classes=3), precision=precision)
    assert 0 <= metrics["val_accuracy"] <= 1


@pytest.mark.parametrize("limit", [4.0, 0.0])
def test_images_that_cannot_be_read_or_have_another_size(classes, limit):
    (classes / "dog" / "0.png").write_text("no picture")
    with pytest.raises(fl.DataError, match=r"images cannot be read: .*dog/0.png \(not an image\). Fix them, or move them"):
        list(set_up(classes, memory_limit=limit).train_dataloader())
    (classes / "dog" / "0.png").unlink()
    paint(classes / "dog", 1, size=20, kind="bmp")
    with pytest.raises(fl.DataError, match=r"different sizes: 1 of them, .* Set 'data.datamodule.image_size' to resize all of"):
        list(set_up(classes, memory_limit=limit).train_dataloader())
    data = set_up(classes, image_size=8, memory_limit=limit)
    assert data.train_dataloader().dataset[0][0].shape == (3, 8, 8)


# ------------------------------------------------------------------ torchvision's formats


@pytest.mark.parametrize(
    ("name", "shape", "train"),
    [
        ("FashionMNIST", (1, 28, 28), 12),
        ("CIFAR10", (3, 32, 32), 60),
        ("CIFAR100", (3, 32, 32), 12),
        ("SVHN", (3, 32, 32), 12),
        ("USPS", (1, 16, 16), 12),
    ],
)
def test_torchvision_sets_give_what_torchvision_gives(name, shape, train, tmp_path, monkeypatch):
    root = write_torchvision_sets(tmp_path / "data", monkeypatch)
    data = fl.TorchvisionDataModule(name, root, batch_size=7)
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
        expected = F.normalize(F.to_dtype(F.to_image(picture), torch.float32, scale=True), list(data.mean), list(data.std))
        assert int(labels[position]) == int(label)
        torch.testing.assert_close(ours[position], expected)
    assert data.origin == f"{name} from {root} ({train} + 12 images)"


def test_a_set_that_cannot_be_had(tmp_path, monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("Network is unreachable") if kwargs.get("download") else RuntimeError("Dataset not found")

    monkeypatch.setattr("torchvision.datasets.CIFAR10", no_network)
    data = fl.TorchvisionDataModule("CIFAR10", str(tmp_path))
    data.prepare_data()
    with pytest.raises(fl.DataError, match=r"CIFAR10 is not in .* the download failed \(OSError: Network is unreachable\)"):
        data.setup("fit")


def test_svhn_without_scipy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(fl.DataError, match=r"needs the package scipy: pip install 'fl_lightning\[svhn\]'"):
        fl.TorchvisionDataModule("SVHN", str(tmp_path))


def test_a_former_name_says_what_to_write(fl):
    with pytest.raises(ImportError, match=r"'ArrayClients' is gone. Write a LazyClients .* docs/examples/file_clients.py"):
        from fl_lightning import ArrayClients  # noqa: F401
    with pytest.raises(ImportError, match=r"'ClientTable' is gone. Write FederationReport, with 'clients' and 'partition'."):
        from fl_lightning import ClientTable  # noqa: F401
    for path in ("CIFAR10DataModule", "fl_lightning.CIFAR10DataModule"):
        status, text = fl("fit", "--config", "adafed_mnist", "--data.datamodule", path)
        assert (status, "Write TorchvisionDataModule with 'name: CIFAR10'." in text) == (2, True), text


def test_torchvisions_transforms_draw_for_each_image():
    torch.manual_seed(0)
    images = torch.arange(4.0).expand(40, 1, 1, 4)
    flipped = augment(images, v2.RandomHorizontalFlip(0.5))[:, 0, 0, 0] == 3
    assert 5 < int(flipped.sum()) < 35
    assert augment(torch.rand(3, 1, 4, 4), v2.RandomHorizontalFlip()).shape == (3, 1, 4, 4)


def test_random_crops_are_windows_of_the_padded_image():
    torch.manual_seed(0)
    images = torch.rand(30, 2, 5, 6)
    changed = fl.RandomCropFlip(padding=2)(images)
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
    assert torch.equal(fl.RandomCropFlip(0, 0.0)(images), images)


def test_a_model_with_more_classes_than_the_data(classes):
    data = fl.ImageFolderDataModule(str(classes), test_share=0.2, batch_size=5)
    with pytest.warns(UserWarning, match=r"labels go from 0 to 2, but the model has 10 classes. .* 'model.num_classes'"):
        metrics = fit(data, fl.ClassificationTask(fl.LeNet(3, 16, 10)))
    assert metrics["val_f1/9"] == 0
