"""Modules of other people's bug reports: what plain Lightning does right with them, a federation does too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federations import CLASSES, SIZES, Blobs, Consecutive, Plain, every_round, federate, trainer
from lightning.pytorch.loggers import CSVLogger
from plain_training import distance_from_plain
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import (
    ClientEvaluation,
    ConfigurationError,
    DataError,
    FedAvg,
    FedDyn,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    FedMedian,
    GeometricMedian,
    LocalTraining,
    RingFed,
    Scaffold,
    SecureAggregation,
)
from fl_lightning.errors import EngineError

ENGINES = ("trainer", "fabric", "stacked")


class Cohorts(FederationCallback):
    def __init__(self) -> None:
        self.clients: set[int] = set()

    def on_round_start(self, trainer: Any, pl_module: Any, round_idx: int, clients: Any) -> None:
        self.clients.update(clients)


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers, whatever ``state_dict`` says."""
    return {name: t.detach().clone() for name, t in (*module.named_parameters(), *module.named_buffers())}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=tolerance, msg=name)


# ---------------------------------------------------------------- what state_dict leaves out


class Normalised(Plain):
    def __init__(self, **more: Any) -> None:
        super().__init__(batchnorm=True, **more)


class WithoutStatistics(Normalised):
    """Leaves BatchNorm's statistics out of checkpoints."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if "running" not in name}


class WithHook(Normalised):
    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(self._remove)

    @staticmethod
    def _remove(module: Any, state: Any, prefix: Any, metadata: Any) -> None:
        for name in [name for name in state if "running" in name]:
            del state[name]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [WithoutStatistics, WithHook])
def test_statistics_that_state_dict_leaves_out_are_averaged(kind, engine, recwarn):
    found = []
    for make in (Normalised, kind):
        torch.manual_seed(3)
        module = make()
        federate(module, 2, local=LocalTraining(engine=engine))
        found.append(tensors(module))
    assert_same(*found)
    assert float(found[1]["net.1.running_mean"].abs().max()) > 0.1
    assert not [one for one in recwarn if "not persistent" in str(one.message)]


class Builds(Normalised):
    """Builds its network in ``setup``, again for each evaluation, and saves none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.built = self.net
        self.net = nn.Identity()

    def setup(self, stage: str) -> None:
        torch.manual_seed(5)
        self.net = type(self.built)(*(part.__class__(*_sizes(part)) for part in self.built))


class SavesNothing(Builds):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {}


def _sizes(part: nn.Module) -> tuple[int, ...]:
    if isinstance(part, nn.Linear):
        return part.in_features, part.out_features
    return (part.num_features,) if isinstance(part, nn.BatchNorm1d) else ()


def test_the_scores_of_a_module_that_saves_nothing_are_those_of_its_weights(tmp_path):
    scores = []
    for kind in (Builds, SavesNothing):
        torch.manual_seed(3)
        federation = FederatedOrchestrator(client_evaluation=ClientEvaluation(1, "val_loss"))
        data = FederatedDataModule(Blobs(), Consecutive(), client_test=0.3)
        fitted = trainer(2, federation, default_root_dir=tmp_path)
        fitted.fit(kind(), data)
        scores.append(float(fitted.callback_metrics["federation/client_mean"]))
    assert scores[0] == scores[1]


# ---------------------------------------------------------------- buffers without a value at the start


class Ranged(Plain):
    """Finds the range of its inputs from infinite values on, and scales by it; validation reads what training found."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.full((4,), torch.inf))
        self.register_buffer("seen", torch.tensor(torch.nan))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        lows = batch[0].min(0).values
        self.low = torch.minimum(self.low, lows)
        self.seen = lows.mean() if self.seen.isnan() else self.seen
        return super().training_step(batch, batch_idx)


class Lowest(Ranged):
    extreme_buffers = {"low": "min"}


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_buffers_that_training_gives_a_value_are_averaged(engine):
    data = Blobs(shuffle=False)
    module = Ranged()
    federate(module, 1, data=data, local=LocalTraining(engine=engine))
    parts = torch.split(data.train[0], SIZES)
    lows = torch.stack([part.min(0).values for part in parts])
    sizes = torch.tensor(SIZES, dtype=torch.float64)
    torch.testing.assert_close(module.low, ((sizes[:, None] * lows).sum(0) / sizes.sum()).float())
    firsts = torch.stack([part[:5].min(0).values.mean() for part in parts])
    torch.testing.assert_close(module.seen, ((sizes * firsts).sum() / sizes.sum()).float())


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("setting", ["all", "two of three", "all at once", "ring"])
def test_the_minimum_is_taken_where_a_module_says_so(setting, rounds):
    module, watch = Lowest(), Cohorts()
    settings = {"two of three": {"clients_per_round": 2}, "all at once": {"strategy": GeometricMedian()}}
    parts: Any = settings.get(setting, {"route": RingFed()} if setting == "ring" else {})
    data = Blobs(shuffle=False)
    federate(module, rounds, watch, data=data, **parts)
    own = torch.split(data.train[0], SIZES)
    seen = torch.cat([own[client] for client in sorted(watch.clients)])
    assert torch.equal(module.low, seen.min(0).values)


class Observed(Plain):
    """Observes activations as for quantization: per tensor, per channel (whose buffers grow), and as a moving average."""

    def __init__(self) -> None:
        super().__init__()
        observers = torch.ao.quantization
        self.whole, self.mean = observers.MinMaxObserver(), observers.MovingAverageMinMaxObserver()
        self.channels = observers.PerChannelMinMaxObserver(ch_axis=1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        for observer in (self.whole, self.channels, self.mean):
            observer(batch[0])
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_observers_of_quantization_reach_the_server(engine):
    data, module = Blobs(shuffle=False), Observed()
    federate(module, 2, data=data, local=LocalTraining(engine=engine))
    x = data.train[0]
    assert module.whole.min_val == x.min()
    assert module.whole.max_val == x.max()
    assert torch.equal(module.channels.min_val, x.min(0).values)
    assert torch.equal(module.channels.max_val, x.max(0).values)
    assert x.min() < module.mean.min_val < 0 < module.mean.max_val < x.max()


@pytest.mark.parametrize("kind", [Lowest, Observed, Ranged])
def test_one_client_finds_what_plain_training_finds(kind):
    assert distance_from_plain(kind) < 1e-12


def test_a_resumed_run_has_the_same_ranges(tmp_path):
    finals = []
    for rounds, resumes in ((3, False), (2, False), (3, True)):
        torch.manual_seed(3)
        saves = [every_round(tmp_path)] if rounds == 2 else []
        module = Observed()
        run = trainer(rounds, FederatedOrchestrator(), *saves, enable_checkpointing=bool(saves))
        last = str(tmp_path / "last.ckpt") if resumes else None
        run.fit(module, FederatedDataModule(Blobs(), Consecutive()), ckpt_path=last)
        finals.append(tensors(module))
    assert_same(finals[0], finals[2])


@pytest.mark.parametrize("named", ["FedMedian", "'federation.secure_aggregation'"])
def test_what_cannot_take_such_a_buffer_says_so(named):
    parts: Any = {"strategy": FedMedian()} if named == "FedMedian" else {"secure_aggregation": SecureAggregation()}
    with pytest.raises(ConfigurationError, match=f"Training changes 'low'.* {named} does not cover such tensors"):
        federate(Lowest(), 1, **parts)


def test_a_mask_of_infinite_values_stays_a_constant():
    class Masked(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) + self.mask.clamp(min=-5)

    module = Masked()
    federate(module, 2)
    assert module.mask.tolist() == [0.0, -torch.inf, 0.0]


# ---------------------------------------------------------------- numbers that validation reads


class Centred(Plain):
    """Finds the mean of its targets at the start of training, and predicts from it, in a method that validation calls."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.steps, self.name, self.rate = 0.0, 0, "at first", 1.0

    def on_train_start(self) -> None:
        self.mean, self.name = 2.0, "later"

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        self.rate = 0.5
        return super().training_step(batch, batch_idx)

    @property
    def _halved(self) -> float:
        return self.rate / 2

    def _shift(self, x: Tensor) -> Tensor:
        return x - self.mean * self._halved

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self._shift(x))


class Layer(nn.Linear):
    scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class InPart(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.net = Layer(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.net.scale = 2.0
        return super().training_step(batch, batch_idx)


class KeptByClients(Centred):
    client_state = ("mean", "rate")


@pytest.mark.parametrize(("kind", "names"), [(Centred, "'mean', 'rate'"), (InPart, "'net.scale'")])
def test_a_number_that_validation_reads_is_named(kind, names):
    with pytest.warns(UserWarning, match=f"Training changed {names} of {kind.__name__}, which validation reads") as told:
        federate(kind(), 2)
    assert sum("which validation reads" in str(one.message) for one in told) == 1


@pytest.mark.parametrize("kind", [Plain, KeptByClients])
def test_other_numbers_are_not(kind, recwarn):
    federate(kind(), 2)
    assert not [one for one in recwarn if "which validation reads" in str(one.message)]


# ---------------------------------------------------------------- what ended in a traceback


class Expanded(Plain):
    """Several numbers of a buffer are one in memory."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True)
        self.register_buffer("shift", torch.full((1,), 0.5).expand(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) + self.shift


class TwoNames(Plain):
    """One tensor is registered as two buffers, one of which training replaces."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.ones(CLASSES)
        self.register_buffer("one", both)
        self.register_buffer("other", both)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.one = self.one * 0.9
        return F.cross_entropy(self(batch[0]) * self.other + self.one, batch[1])


class Tiny(Plain):
    """A scale of float8, which training changes or not."""

    changes = False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4).to(torch.float8_e4m3fn))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.changes:
            self.scale = torch.full((4,), 1.5).to(torch.float8_e4m3fn)
        return super().training_step((batch[0] * self.scale.to(batch[0]), batch[1]), batch_idx)


class ChangesTiny(Tiny):
    changes = True


class Words(Plain):
    """Embeddings whose gradients are sparse."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.words, self.net = nn.Embedding(30, 8, sparse=sparse), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.words((x.abs() * 5).long().clamp(0, 29)).mean(1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Expanded, TwoNames, Tiny])
def test_unusual_buffers_are_those_of_plain_training(kind, engine):
    if kind is TwoNames and engine == "stacked":
        with pytest.raises(EngineError, match="Training replaces one of the buffers 'one' and 'other', which are one"):
            federate(kind(), 1, local=LocalTraining(engine=engine))
        return
    kept = "fresh" if engine == "stacked" else "kept"
    assert distance_from_plain(kind, engine, dtype=torch.float32, optimizer_state=kept) < 1e-6


class Wide(ChangesTiny):
    """Has the scale in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(4)


def test_training_may_change_a_buffer_of_one_byte():
    found = []
    for kind in (ChangesTiny, Wide):
        torch.manual_seed(3)
        module = kind()
        federate(module, 3)
        found.append(tensors(module))
    assert torch.equal(found[0]["scale"].float(), torch.full((4,), 1.5))
    assert all(torch.equal(tensor.float(), found[1][name].float()) for name, tensor in found[0].items())
    with pytest.raises(EngineError, match=r"Training changes 'scale'.* stacked clients would share"):
        federate(ChangesTiny(), 1, local=LocalTraining(engine="stacked"))


@pytest.mark.parametrize("kind", [Expanded, ChangesTiny])  # a Trainer, too, reads two tensors into one of two names
def test_unusual_buffers_of_several_clients(kind, tmp_path):
    finals = []
    for rounds, resumes in ((3, False), (2, False), (3, True)):
        torch.manual_seed(3)
        saves = [every_round(tmp_path)] if rounds == 2 else []
        module, run = kind(), trainer(rounds, FederatedOrchestrator(), *saves, enable_checkpointing=bool(saves))
        last = str(tmp_path / "last.ckpt") if resumes else None
        run.fit(module, FederatedDataModule(Blobs(), Consecutive()), ckpt_path=last)
        finals.append({name: tensor.float() for name, tensor in tensors(module).items()})
    assert_same(finals[0], finals[2])
    assert all(bool(tensor.isfinite().all()) for tensor in finals[0].values())


@pytest.mark.parametrize("engine", ENGINES[:2])
@pytest.mark.parametrize("rule", ["FedProx", "SCAFFOLD", "FedDyn"])
def test_sparse_gradients_are_those_of_dense_ones(rule, engine):
    found = []
    for sparse in (False, True):
        torch.manual_seed(3)
        module = Words(sparse)
        strategy = {"SCAFFOLD": Scaffold, "FedDyn": FedDyn}.get(rule, FedAvg)()
        federate(module, 3, strategy=strategy, local=LocalTraining(engine=engine, proximal_mu=0.3 * (rule == "FedProx")))
        found.append(tensors(module))
    assert_same(*found, tolerance=1e-6)


def test_what_needs_sparse_gradients_is_refused_beside_a_rule():
    class NeedsSparse(Words):
        def configure_optimizers(self) -> Any:
            return torch.optim.SparseAdam(list(self.words.parameters()))

    with pytest.raises(ConfigurationError, match=r"ProximalRule, .* but SparseAdam needs sparse gradients. Use Adam, or"):
        federate(NeedsSparse(), 1, local=LocalTraining(proximal_mu=0.1))
    federate(NeedsSparse(), 1)
    with pytest.raises(EngineError, match="Stacked clients do not support Embedding with sparse gradients"):
        federate(Words(), 1, local=LocalTraining(engine="stacked"))


def test_a_layer_that_is_built_too_late_is_named_before_the_first_round():
    class Late(Plain):
        def on_fit_start(self) -> None:
            if not hasattr(self, "head"):
                self.head = nn.Linear(3, 3)

    with pytest.raises(ConfigurationError, match=r"Late builds 'head.weight' in 'on_fit_start', after Lightning has called"):
        federate(Late(), 1)


def test_setup_may_read_a_batch():
    class Measures(Plain):
        def setup(self, stage: str) -> None:
            x, _ = next(iter(self.trainer.datamodule.train_dataloader()))
            self.width = x.shape[1]

    module = Measures()
    assert federate(module, 2).global_step == 2
    assert module.width == 4


class Follows(Plain):
    """Steps its schedule and logs its rate in validation."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.25)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 50)]

    def on_validation_epoch_end(self) -> None:
        self.lr_schedulers().step()
        self.log("rate", self.optimizers().param_groups[0]["lr"])


def test_validation_may_read_optimizers_and_schedules(tmp_path):
    module = Follows()
    run = trainer(2, FederatedOrchestrator(client_evaluation=ClientEvaluation(1, "val_acc")), default_root_dir=tmp_path)
    data = FederatedDataModule(Blobs(), Consecutive(), client_test=0.3)
    with pytest.warns(UserWarning, match=r"The validation of Follows reads its optimizers or schedules\. They are") as told:
        run.fit(module, data)
    assert float(run.callback_metrics["rate"]) == 0.25
    assert 1 <= sum("reads its optimizers" in str(one.message) for one in told) <= 2
    assert not {"optimizers", "lr_schedulers"} & vars(module).keys()
    assert isinstance(module.configure_optimizers()[0][0], torch.optim.SGD)


def test_clients_may_use_any_part_of_an_experiment():
    class Notes(Plain):
        def on_train_start(self) -> None:
            experiment = self.logger.experiment
            experiment.config.update({"width": 8})
            experiment.summary["best"] = 1
            experiment["train/loss"].append(1.0)
            with experiment.start_run() as run:
                run.log({"a": 1})
            assert list(experiment.history) == []

    federate(Notes(), 1, flags={"logger": CSVLogger("logs")})


def test_noise_on_numbers_of_words_is_refused():
    class Tokens(Blobs):
        def __init__(self) -> None:
            super().__init__()
            self.train = ((self.train[0] * 3).long(), self.train[1])

    with pytest.raises(DataError, match=r"adds noise to images and other measurements, but the inputs are torch.int64"):
        trainer(1, FederatedOrchestrator()).fit(Plain(), FederatedDataModule(Tokens(), Consecutive(), feature_noise=0.1))
