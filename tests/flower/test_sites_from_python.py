"""A user's script fits with sites: the bits of the command line, and what sites cannot build."""

from functools import partial
from typing import Any

import pytest
import sites_over_bytes as net
import torch
from lightning.pytorch import Trainer, seed_everything
from sites_over_bytes import table

import fl_lightning as fl
from fl_lightning import ConfigurationError, FedAvg, FedNova, LocalTraining, TopK
from fl_lightning.flower.values import values_of

# ---------------------------------------------------------------- from Python


def script(pool: Any, module: Any = None, **federation: Any) -> Any:
    """Fit from Python, as a user's script does, and return the Trainer."""
    seed_everything(0)
    module = pool.build_model() if module is None else module
    rows = table("few.csv", test_path="test.csv")["init_args"]
    data = fl.FederatedDataModule(fl.TableDataModule(**rows), fl.DomainPartitioner())
    flags = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "num_sanity_val_steps": 0}
    federation = fl.FederatedOrchestrator(pool=pool, **{"local": LocalTraining(threads=1), **federation})
    trainer = Trainer(max_epochs=3, callbacks=[federation], enable_checkpointing=False, enable_model_summary=False, **flags)
    trainer.fit(module, data)
    return trainer


def written(**changes: Any) -> dict[str, Any]:
    """Return the values of the model with its loss as a class, where YAML may have its name alone."""
    own = net.configuration()["model"]["init_args"]
    return net.of("ClassificationTask", **own | {"loss": net.of("CrossEntropy")} | changes)


@pytest.mark.slow
def test_a_python_script_gives_the_bits_of_the_command_line():
    """The strategy, the clients' optimizer settings and a transform are objects; the model is values."""
    net.prepare()
    own = {"threads": 1, "max_epochs": 2, "lr_decay": 0.9}
    config = net.configuration(strategy="FedNova", local=own, transforms=[net.of("TopK", share=0.3)])
    given = {"strategy": FedNova(), "local": LocalTraining(**own), "transforms": [TopK(share=0.3)]}
    trainer = script(net.BytesSites(model=written()), **given)
    assert net.same_bits(net.simulate(config), trainer.lightning_module.state_dict())


class Forgetful(FedAvg):
    """Does not keep its setting."""

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()


def test_a_python_script_is_told_what_sites_cannot_build():
    class Mine(FedAvg):
        pass

    net.prepare()
    larger = net.of("fl_lightning.MLP", in_features=6, hidden=[9], num_classes=3)
    other, pool = net.BytesSites(model=written(network=larger)).build_model(), net.BytesSites(model=written())
    for call, words in (
        (lambda: script(net.BytesSites(), other), r"FlowerPool\(..., model=.*pool.build_model"),
        (lambda: net.BytesSites().build_model(), "has no 'model' to build"),
        (lambda: net.BytesSites(model=net.configuration()["model"]).build_model(), "cannot be built .* Write every class in"),
        (lambda: script(pool, other), r"'network.layers.1.bias' is .* instead of .* Fit 'pool.build_model\(\)'"),
        (lambda: script(pool, strategy=Mine()), r"Sites cannot import .*Mine' from a script"),
        (lambda: script(pool, strategy=Forgetful()), r"'federation.strategy' is .*Forgetful.* cannot build from values"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            call()


def test_values_of_optimizers_and_classes():
    assert values_of(torch.optim.SGD, "x") == {"class_path": "torch.optim.SGD", "init_args": {}}
    made = partial(torch.optim.lr_scheduler.StepLR, step_size=3)
    assert values_of(made, "x") == {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 3}}
    found = values_of(LocalTraining(max_epochs=7), "local")
    assert (found["class_path"], found["init_args"]["max_epochs"]) == ("fl_lightning.LocalTraining", 7)
    with pytest.raises(ConfigurationError, match=r"'federation.x' is .*lambda"):
        values_of(lambda: 1, "x")
