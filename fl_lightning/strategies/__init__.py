"""Provide strategies: how the server combines the clients' updates."""

from fl_lightning.strategies.adafed import AdaFed
from fl_lightning.strategies.afl import AFL
from fl_lightning.strategies.apfl import APFL
from fl_lightning.strategies.base import JointStrategy, ModelScorer, RunningStrategy, Strategy, WeightedAverage
from fl_lightning.strategies.cosine_filter import CosineFilter
from fl_lightning.strategies.ditto import Ditto
from fl_lightning.strategies.fedadagrad import FedAdagrad
from fl_lightning.strategies.fedasync import FedAsync
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.strategies.fedavgm import FedAvgM
from fl_lightning.strategies.fedbabu import FedBABU
from fl_lightning.strategies.fedbuff import FedBuff
from fl_lightning.strategies.feddyn import FedDyn
from fl_lightning.strategies.fedexp import FedExP
from fl_lightning.strategies.fedloss import FedLoss
from fl_lightning.strategies.fedmedian import FedMedian
from fl_lightning.strategies.fednova import FedNova
from fl_lightning.strategies.fedrep import FedRep
from fl_lightning.strategies.fedsgd import FedSGD
from fl_lightning.strategies.filtering import FilteringStrategy
from fl_lightning.strategies.focus import Focus
from fl_lightning.strategies.geometric_median import GeometricMedian
from fl_lightning.strategies.kmeans import FederatedKMeans
from fl_lightning.strategies.krum import Krum
from fl_lightning.strategies.last_client import LastClient
from fl_lightning.strategies.moon import MOON
from fl_lightning.strategies.pfedme import PFedMe
from fl_lightning.strategies.qfedavg import QFedAvg
from fl_lightning.strategies.scaffold import Scaffold
from fl_lightning.strategies.shapley import ShapleyValues
from fl_lightning.strategies.trimmed_mean import TrimmedMean

__all__ = [
    "AFL",
    "APFL",
    "MOON",
    "AdaFed",
    "CosineFilter",
    "Ditto",
    "FedAdagrad",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBuff",
    "FedDyn",
    "FedExP",
    "FedLoss",
    "FedMedian",
    "FedNova",
    "FedRep",
    "FedSGD",
    "FederatedKMeans",
    "FilteringStrategy",
    "Focus",
    "GeometricMedian",
    "JointStrategy",
    "Krum",
    "LastClient",
    "ModelScorer",
    "PFedMe",
    "QFedAvg",
    "RunningStrategy",
    "Scaffold",
    "ShapleyValues",
    "Strategy",
    "TrimmedMean",
    "WeightedAverage",
]
