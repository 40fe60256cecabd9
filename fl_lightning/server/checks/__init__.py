"""Checks before the first round: which settings fit together, and with the module, the data and the checkpoints."""
