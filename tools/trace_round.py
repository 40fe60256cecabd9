"""Count the files, functions and calls of the package that one plain FedAvg round of two clients runs through."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning
from fl_lightning import FederatedDataModule, FederatedOrchestrator, FederationCallback, IIDPartitioner

ROOT = Path(fl_lightning.__file__).parent
KERNEL = ("core", "options", "server", "clients", "settings")
ANONYMOUS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")


class Regression(L.LightningModule):
    """Fit a line."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the loss."""
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.line(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Points(L.LightningDataModule):
    """Hold eight points."""

    def train_dataloader(self) -> Any:
        """Return batches of two."""
        return DataLoader(TensorDataset(torch.randn(8, 2), torch.randn(8, 1)), batch_size=2)


class Trace(FederationCallback):
    """Count calls from the start of the second round, when everything is built, to its end."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin in the second round."""
        if trainer.current_epoch == 1:
            sys.setprofile(self._profile)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End."""
        sys.setprofile(None)

    def _profile(self, frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and code.co_name not in ANONYMOUS:
            self.calls[str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname] += 1


def main() -> None:
    """Print the counts, and with ``-v`` the functions of the kernel."""
    warnings.simplefilter("ignore")
    trace = Trace()
    flags: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", callbacks=[FederatedOrchestrator(), trace], **flags)
    trainer.fit(Regression(), FederatedDataModule(Points(), IIDPartitioner(2)))
    kernel = {place for place in trace.calls if place[0].split("/")[0] in KERNEL}
    for name, places in (("package", set(trace.calls)), (f"kernel ({', '.join(KERNEL)})", kernel)):
        calls = sum(trace.calls[place] for place in places)
        print(f"{name}: {len({file for file, _ in places})} files, {len(places)} functions, {calls} calls")
    if "-v" in sys.argv:
        for file, function in sorted(kernel):
            print(f"  {file:<45}{function}")


if __name__ == "__main__":
    main()
