"""What the server does with what arrives."""

from fl_lightning.strategies.adafed import AdaFed
from fl_lightning.strategies.base import Strategy, WeightedAverage
from fl_lightning.strategies.fedavg import FedAvg

__all__ = ["AdaFed", "FedAvg", "Strategy", "WeightedAverage"]
