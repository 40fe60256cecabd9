"""How the training data are spread over the clients."""

from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.iid import IIDPartitioner
from fl_lightning.partitioners.table import TablePartitioner

__all__ = ["IIDPartitioner", "Partitioner", "TablePartitioner"]
