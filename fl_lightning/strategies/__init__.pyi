"""The public names, for type checkers. Written by tools/write_stub.py; ``__init__.py`` imports them on first use."""

from typing import NamedTuple

from fl_lightning.strategies.adafed import AdaFed as AdaFed
from fl_lightning.strategies.afl import AFL as AFL
from fl_lightning.strategies.apfl import APFL as APFL
from fl_lightning.strategies.base import JointStrategy as JointStrategy, ModelScorer as ModelScorer, RunningStrategy as RunningStrategy, Strategy as Strategy, WeightedAverage as WeightedAverage
from fl_lightning.strategies.cosine_filter import CosineFilter as CosineFilter
from fl_lightning.strategies.ditto import Ditto as Ditto
from fl_lightning.strategies.fedadagrad import FedAdagrad as FedAdagrad
from fl_lightning.strategies.fedasync import FedAsync as FedAsync
from fl_lightning.strategies.fedavg import FedAvg as FedAvg
from fl_lightning.strategies.fedavgm import FedAvgM as FedAvgM
from fl_lightning.strategies.fedbabu import FedBABU as FedBABU
from fl_lightning.strategies.fedbuff import FedBuff as FedBuff
from fl_lightning.strategies.feddyn import FedDyn as FedDyn
from fl_lightning.strategies.fedexp import FedExP as FedExP
from fl_lightning.strategies.fedloss import FedLoss as FedLoss
from fl_lightning.strategies.fedmedian import FedMedian as FedMedian
from fl_lightning.strategies.fednova import FedNova as FedNova
from fl_lightning.strategies.fedrep import FedRep as FedRep
from fl_lightning.strategies.fedsgd import FedSGD as FedSGD
from fl_lightning.strategies.filtering import FilteringStrategy as FilteringStrategy
from fl_lightning.strategies.focus import Focus as Focus
from fl_lightning.strategies.geometric_median import GeometricMedian as GeometricMedian
from fl_lightning.strategies.kmeans import FederatedKMeans as FederatedKMeans
from fl_lightning.strategies.krum import Krum as Krum
from fl_lightning.strategies.last_client import LastClient as LastClient
from fl_lightning.strategies.moon import MOON as MOON
from fl_lightning.strategies.pfedme import PFedMe as PFedMe
from fl_lightning.strategies.qfedavg import QFedAvg as QFedAvg
from fl_lightning.strategies.scaffold import Scaffold as Scaffold
from fl_lightning.strategies.shapley import ShapleyValues as ShapleyValues
from fl_lightning.strategies.trimmed_mean import TrimmedMean as TrimmedMean

class Algorithm(NamedTuple):
    """Describe an algorithm in one line.

    Args:
        name: the name under which papers know it.
        line: what it does.
        config: the configuration of its name, ``<file>_<data>``.
        strategy: its class, in the module ``<file>``; empty if it is a route, an option or a setting of a strategy above.
        at_sites: whether sites of a real federation build the strategy for a server. Set it after looking at what the class
            computes from a site's rows, because that is what leaves with its tensors and numbers.
        page: where its section is, from ``docs/algorithms``; empty for the section of its name on the page of its group.
    """

    name: str
    line: str
    config: str
    strategy: str = ""
    at_sites: bool = False
    page: str = ""

    @property
    def file(self) -> str:
        """Return the name of its configuration without the data set."""
        return self.config.rpartition("_")[0]

ALGORITHMS: dict[str, tuple[Algorithm, ...]]
STRATEGIES: tuple[Algorithm, ...]
__all__: list[str]
