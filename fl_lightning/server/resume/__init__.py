"""The resuming of a federation, and the comparison of a checkpoint's settings with those of the run."""
