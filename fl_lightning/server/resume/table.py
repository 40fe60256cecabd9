"""List the settings that a resumed run must keep, may change freely, or may change on purpose."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """Enumerate whether a resumed run may change a setting."""

    STAYS = "must stay"
    FREE = "is free"
    ON_PURPOSE = "changes on purpose"


class Row(NamedTuple):
    """List the arguments of a class by kind, separated by spaces; ``*`` stands for all others.

    Args:
        stays: arguments that must not change, because a checkpoint's state depends on them.
        free: arguments that change no result, or whose effect is compared directly.
        on_purpose: arguments that change the result, which needs ``federation.resume_changed``.
    """

    stays: str = ""
    free: str = ""
    on_purpose: str = ""


_IMAGES = Row(free="root num_workers", on_purpose="batch_size eval_batch_size mean std normalize augmentation validation_share")

TABLE: dict[str, Row] = {
    "FederatedOrchestrator": Row(
        stays="strategy route transforms personal personal_start clients_per_round asynchronous seed",
        free="faults pool memory_limit client_columns enabled resume_changed trusted_classes",
        on_purpose="local attackers secure_aggregation availability clock client_evaluation server_evaluation server_optimizer",
    ),
    "LocalTraining": Row(
        stays="privacy",
        free="threads detect_anomaly",  # a different number of threads causes a warning
        on_purpose="engine stack_size compile channels_last max_epochs max_steps precision gradient_clip_val "
        "gradient_clip_algorithm accumulate_grad_batches limit_train_batches deterministic progress optimizer_state lr_decay "
        "proximal_mu callbacks full_batch partial_work",
    ),
    "PartialWork": Row(on_purpose="share stragglers"),
    "PersonalPart": Row(stays="*"),
    "ExamplePrivacy": Row(stays="*"),
    "Faults": Row(free="*"),  # so that a run that ended because of failures can continue
    "Availability": Row(on_purpose="drop_out slow slowness leave come_back"),
    "ClientEvaluation": Row(free="every_n_rounds personal_epochs compare_alone", on_purpose="metric mode"),
    "ServerEvaluation": Row(on_purpose="every_n_rounds examples batch_size precision"),
    "SecureAggregation": Row(on_purpose="threshold"),
    "Asynchronous": Row(on_purpose="concurrency buffer"),
    "Clock": Row(on_purpose="between_clients between_jobs ticks by_examples"),
    "Attackers": Row(on_purpose="wrong_labels discard_global clients labels backdoor model from_round"),
    "RandomLabels": Row(on_purpose="share"),
    "PermutedLabels": Row(on_purpose="shift"),
    "RelabelClass": Row(on_purpose="source target"),
    "Backdoor": Row(on_purpose="target share size value"),
    "ALIE": Row(on_purpose="z"),
    "GaussianUpdate": Row(on_purpose="std"),
    "InnerProductManipulation": Row(on_purpose="scale"),
    "ScaledUpdate": Row(on_purpose="scale"),
    "SignFlip": Row(on_purpose="scale"),
    "ClientPrivacy": Row(stays="*"),
    "ClipUpdate": Row(on_purpose="max_norm"),
    "Quantize": Row(on_purpose="bits block"),
    "TopK": Row(on_purpose="share error_feedback"),
    # strategies
    "AdaFed": Row(on_purpose="metric power examples mode epsilon scored_by"),
    "AFL": Row(on_purpose="rate loss"),
    "APFL": Row(on_purpose="alpha alpha_lr weighting"),
    "CosineFilter": Row(on_purpose="threshold examples"),
    "Ditto": Row(on_purpose="strength weighting"),
    "FedAdagrad": Row(on_purpose="lr tau weighting"),
    "FedAsync": Row(on_purpose="alpha staleness a b mixes"),
    "FedAvg": Row(on_purpose="weighting"),
    "FedAvgM": Row(on_purpose="momentum lr weighting"),
    "FedBABU": Row(on_purpose="weighting"),
    "FedBuff": Row(on_purpose="lr momentum staleness a b weighting"),
    "FedDyn": Row(on_purpose="alpha"),
    "FedExP": Row(on_purpose="epsilon weighting"),
    "FedRep": Row(on_purpose="head_epochs weighting"),
    "FedSGD": Row(on_purpose="weighting"),
    "FedLoss": Row(on_purpose="loss examples"),
    "FederatedKMeans": Row(stays="seed", on_purpose="empty"),
    "Focus": Row(on_purpose="loss temperature credibility"),
    "GeometricMedian": Row(on_purpose="examples smoothing iterations"),
    "Krum": Row(on_purpose="attackers selected"),
    "LastClient": Row(stays="seed"),
    "MOON": Row(stays="representation", on_purpose="mu temperature weighting"),
    "PFedMe": Row(on_purpose="strength steps lr beta weighting"),
    "QFedAvg": Row(on_purpose="q lr loss"),
    "ShapleyValues": Row(stays="seed", on_purpose="metric mode exact_up_to orders tolerance"),
    "TrimmedMean": Row(on_purpose="attackers"),
    # routes
    "FedStar": Row(on_purpose="periods metric"),
    "LocalOnly": Row(on_purpose="metric mode"),
    "Mediators": Row(on_purpose="clients_per_mediator"),
    "Mocha": Row(on_purpose="strength l2 smoothing update_every"),
    "PeriodRoute": Row(on_purpose="periods"),
    "RingFed": Row(on_purpose="periods gamma"),
    "WarmStart": Row(stays="route", on_purpose="rounds"),
    # data; the partition and the examples themselves are compared
    "FederatedDataModule": Row(
        free="partitioner client_validation client_test public_share memory_limit clients",
        on_purpose="datamodule server_set feature_noise rebalancing",
    ),
    "LabelAveraging": Row(on_purpose="augmentation"),
    "SimulatedTasksDataModule": Row(
        on_purpose="num_clients groups features examples kind spread noise shift outliers server_outliers outlier_noise "
        "test_examples batch_size eval_batch_size seed"
    ),
    "TableDataModule": Row(
        free="path test_path",
        on_purpose="target test_share client_column person_column classes kind standardize batch_size eval_batch_size seed",
    ),
    "ImageDataModule": Row(free="num_workers", on_purpose="batch_size eval_batch_size mean std augmentation"),
    "TorchvisionDataModule": _IMAGES,
    "CIFAR10DataModule": _IMAGES,
    "CIFAR100DataModule": _IMAGES,
    "FashionMNISTDataModule": _IMAGES,
    "SVHNDataModule": _IMAGES,
    "USPSDataModule": _IMAGES,
    "MNISTDataModule": _IMAGES._replace(free="root num_workers source"),
    "ImageFolderDataModule": Row(
        free="root test_root num_workers memory_limit",
        on_purpose="test_share image_size channels classes white batch_size eval_batch_size mean std augmentation unreadable "
        "seed",
    ),
    "CellFolderDataModule": Row(
        free="root test_root num_workers memory_limit",
        on_purpose="test_share image_size density_sigma density_scale batch_size eval_batch_size channels classes white "
        "mean std augmentation unreadable seed",
    ),
    "SimulatedCellsDataModule": Row(
        free="num_workers",
        on_purpose="sites image_size test_images density_sigma density_scale batch_size eval_batch_size mean std augmentation "
        "seed",
    ),
    "CellSite": Row(on_purpose="*"),
    "TransferLearning": Row(on_purpose="parts thaw_after freeze_after"),
}
"""The rows by class of this package. Other settings, such as the module's, may change on purpose."""


def kind_of(name: str, argument: str) -> Kind | None:
    """Return whether a resumed run may change an argument of a class; None if the table does not say.

    Args:
        name: the name of the class.
        argument: the argument of its constructor.
    """
    row = TABLE.get(name, Row())
    listed = {Kind.STAYS: row.stays.split(), Kind.FREE: row.free.split(), Kind.ON_PURPOSE: row.on_purpose.split()}
    named = (kind for kind, arguments in listed.items() if argument in arguments)
    rest = (kind for kind, arguments in listed.items() if "*" in arguments)
    return next(named, None) or next(rest, None)
