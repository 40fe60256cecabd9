"""Count cells in microscope images, simulated or your own (AdaFed, section 3.2)."""

from fl_lightning.cells.drawing import CellSite
from fl_lightning.cells.folders import CellFolderDataModule
from fl_lightning.cells.simulated import SimulatedCellsDataModule

__all__ = ["CellFolderDataModule", "CellSite", "SimulatedCellsDataModule"]
