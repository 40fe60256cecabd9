"""Checks before the first round of how the settings fit each other, the module, the data and the checkpoints."""
