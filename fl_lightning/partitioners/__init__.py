"""Provide partitioners, which divide the training set over clients; each has a file."""

from fl_lightning.partitioners.adafed_simulation_1 import AdaFedSimulation1
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.classes import ClassesPartitioner
from fl_lightning.partitioners.column import ColumnPartitioner, DomainPartitioner
from fl_lightning.partitioners.dirichlet import DirichletPartitioner
from fl_lightning.partitioners.flower import FlowerPartitioner
from fl_lightning.partitioners.iid import IIDPartitioner
from fl_lightning.partitioners.quantity import QuantityPartitioner
from fl_lightning.partitioners.shards import ShardPartitioner
from fl_lightning.partitioners.table import TablePartitioner

__all__ = [
    "AdaFedSimulation1",
    "ClassesPartitioner",
    "ColumnPartitioner",
    "DirichletPartitioner",
    "DomainPartitioner",
    "FlowerPartitioner",
    "IIDPartitioner",
    "Partitioner",
    "QuantityPartitioner",
    "ShardPartitioner",
    "TablePartitioner",
]
