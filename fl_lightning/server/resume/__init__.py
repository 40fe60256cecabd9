"""Resume a federation: compare the settings of a checkpoint with those of the run."""
