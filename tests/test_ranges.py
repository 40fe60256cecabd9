"""The ends of each setting's range: allowed up to there, and refused beyond by name."""

from typing import Any

import pytest
import yaml
from signatures import RECIPES

from fl_lightning import ConfigurationError

ALLOWED = """
ClientPrivacy: {noise_multiplier: 1.0e-9, delta: [1.0e-9, 0.999]}
ClipUpdate: {max_norm: [1.0e-9, 9.0e+11]}
CosineFilter: {threshold: [-1, 0.999]}
FedAvgM: {momentum: [0, 0.999], lr: 1.0e-9}
FedLoss: {examples: 0}
FedStar: {periods: 1}
Focus: {temperature: 1.0e-9}
GeometricMedian: {iterations: 1, smoothing: [1.0e-300, 999_999]}
Krum: {attackers: [0, 0.0, 0.499, 3], selected: [1, null]}
Mediators: {clients_per_mediator: 1}
Mocha: {strength: 0, l2: 0, smoothing: 1.0e-9, update_every: 1}
Quantize: {bits: [2, 16], block: 1}
RingFed: {gamma: [0, 1], periods: 1}
ShapleyValues: {exact_up_to: [0, 16], orders: 1, tolerance: [-1, 0]}
TopK: {share: [1.0e-9, 1]}
TrimmedMean: {attackers: [0, 0.0, 0.499, 3]}
WarmStart: {rounds: 1}
"""
REFUSED = """
AFL: {rate: -0.1, loss: val_accuracy}
APFL: {alpha: 1.1, alpha_lr: -1.0}
AdaFed: {power: 0}
Asynchronous: {concurrency: [0, 1.5], buffer: [0, 2.5]}
Attackers: {from_round: -1}
Availability: {drop_out: 1, slow: 2, slowness: 0.5, leave: 2, come_back: 0}
Backdoor: {target: -1, share: 0, size: 0, value: .nan}
CalibrationCurve: {bins: 0}
CellFolderDataModule: {density_sigma: 0, density_scale: -1, test_share: 1, image_size: 0, eval_batch_size: 0}
CellSite: {images: 0, radius: 0.0, brightness: 1.1, brightness_spread: 2, background: -0.1, gradient: 3, blur: .nan, noise: -1,
  read_noise: .inf, missed: 1.5, spurious: -0.5, displaced: -1, cells: [[5, 3], [-1, 3], [0, 1001]]}
ClassesPartitioner: {num_clients: 0, classes_per_client: 0}
ClientEvaluation: {every_n_rounds: -1, personal_epochs: -1}
ClientPrivacy: {max_norm: .inf, noise_multiplier: 0, delta: [0, 1.0], noise: none, target_quantile: 1.0, count_noise: 1.0}
ClipUpdate: {max_norm: [0, 1.0e+12]}
Clock: {between_clients: normal, between_jobs: x, ticks: 0}
ColumnPartitioner: {column: "", min_examples: 0}
CosineFilter: {threshold: [-1.001, 1]}
DensityCount: {scale: 0}
DirichletPartitioner: {beta: [0.0, -1.0, .nan, .inf], num_clients: 0, min_examples: 0}
Ditto: {strength: -1.0}
DomainPartitioner: {clients_per_domain: 0}
ExamplePrivacy: {max_grad_norm: 0, noise_multiplier: .inf, delta: 0}
F1WeightedCrossEntropy: {num_classes: 1, epsilon: 0.0}
Faults: {policy: ignore, retries: -1, min_updates: 0, deadline: 0}
FeatureCache: {memory_limit: -1}
FedAdagrad: {lr: 0.0, tau: 0.0}
FedAsync: {alpha: 0, staleness: linear, mixes: both}
FedAvgM: {momentum: [-0.001, 1], lr: 0}
FedBuff: {a: -1, b: -1, lr: 0, momentum: 1}
FedDyn: {alpha: 0.0}
FedExP: {epsilon: -1.0}
FederationReport: {max_clients: 0, min_count: 0}
FedLoss: {examples: -0.001, loss: val_accuracy}
FedRep: {head_epochs: 0}
FedStar: {periods: 0, metric: val_loss}
FederatedKMeans: {empty: drop}
Focus: {temperature: [0, -1], loss: val_f1_macro, credibility: mean}
GaussianUpdate: {std: 0}
GeometricMedian: {iterations: 0, smoothing: [0, 1.0e+6]}
HDF5Clients: {fields: [x, [], [x, x]], shapes: {z: [1]}, scales: {z: 1.0}, test_clients: 0, eval_batch_size: 0}
IIDPartitioner: {num_clients: 0}
ImageFolderDataModule: {test_share: 1.0, image_size: 0, memory_limit: -1, num_workers: -1, eval_batch_size: 0, white: 0}
InnerProductManipulation: {scale: 0}
KMeansTask: {num_clusters: 0, num_features: 0, init: forgy}
Krum: {attackers: [-1, -0.1, 0.5], selected: 0}
LeNet: {image_size: 3}
LocalTraining: {progress: 'yes', optimizer_state: 'yes', engine: nonsense, max_epochs: -1, proximal_mu: -1.0, lr_decay: 0.0,
  gradient_clip_val: 0.0, limit_train_batches: 0, threads: 0, max_steps: 0, accumulate_grad_batches: 0, stack_size: 0}
MNISTDataModule: {validation_share: [-0.1, 1]}
MLP: {in_features: 0, hidden: [[0]], dropout: 1.0}
MOON: {mu: -1.0, temperature: 0.0}
Mediators: {clients_per_mediator: 0}
Mocha: {strength: -0.001, l2: -0.001, smoothing: 0, update_every: 0}
PFedMe: {strength: 0.0, steps: 0, lr: 0.1, beta: 0.0}
PartialWork: {share: 1.5}
PermutedLabels: {shift: 0}
PredictionImages: {images: 0}
QFedAvg: {q: -1.0, lr: 0.0, loss: val_accuracy}
QuantityPartitioner: {beta: [0.0, -1.0, .nan, .inf], num_clients: 0, min_examples: 0}
Quantize: {bits: [1, 17], block: 0}
RandomCropFlip: {padding: -1, flip: 2}
RandomLabels: {share: 2}
ReportOptions: {every: 0, after: -1, last: 0}
RingFed: {gamma: [-0.001, 1.001], periods: 0}
RobustLoss: {scale: 0.0, shape: [2.5, -2.0], lowest: -0.5}
ScaledUpdate: {scale: 0}
SecureAggregation: {threshold: 0.5}
ServerEvaluation: {every_n_rounds: 0, examples: [0, 1.5], batch_size: [0, auto]}
ShapleyValues: {exact_up_to: [-1, 17], orders: 0, tolerance: [-2, -0.5]}
ShardPartitioner: {num_clients: 0, shards_per_client: 0}
SignFlip: {scale: 0}
SimulatedCellsDataModule: {image_size: 7, test_images: 0, density_sigma: 0, density_scale: 0, batch_size: 0}
SimulatedTasksDataModule: {num_clients: 0, groups: [0, 11], features: 0, examples: [[5, 4], [0, 4]], kind: blobs, spread: -0.1,
  noise: -0.1, shift: -0.1, outliers: 1.1, server_outliers: -0.1, test_examples: 0, batch_size: 0}
Standardized: {num_features: 0}
Storage: {disk: 0, memory: -1}
TableDataModule: {kind: ranking, test_share: 1.0, client_column: target, person_column: target, batch_size: 0,
  eval_batch_size: 0, columns: {age: {from: alter}}}
TablePartitioner: {counts: [[], [[1, 2], [3]], [[1, -2]]]}
TopK: {share: [0, 1.001]}
TorchvisionDataModule: {name: KMNIST}
TransferLearning: {parts: [[], net.0], freeze_after: -1}
TrimmedMean: {attackers: [-1, -0.1, 0.5]}
UNet: {channels: 0, outputs: 0, width: 0, depth: 0}
VGG19: {pooled: 0}
WarmStart: {rounds: 0}
Yogi: {lr: 0}
"""


def given(table: str) -> list[Any]:
    """Return the rows of a table: a public class, its setting, and a value; a list has several."""
    found = []
    for name, settings in yaml.safe_load(table).items():
        for setting, values in settings.items():
            each = values if isinstance(values, list) else [values]
            found += [pytest.param(name, setting, value, id=f"{name}.{setting}: {value}") for value in each]
    return found


@pytest.mark.parametrize(("name", "setting", "value"), given(ALLOWED))
def test_a_range_reaches_to_its_ends(name: str, setting: str, value: Any) -> None:
    RECIPES[name].kind(**{**RECIPES[name].valid(), setting: value})


@pytest.mark.parametrize(("name", "setting", "value"), given(REFUSED))
def test_a_value_beyond_is_refused_by_name(name: str, setting: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{setting}' (\\(.*\\) )?must be "):
        RECIPES[name].kind(**{**RECIPES[name].valid(), setting: value})
