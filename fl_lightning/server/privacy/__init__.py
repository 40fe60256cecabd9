"""The account of the privacy that a run has spent."""
