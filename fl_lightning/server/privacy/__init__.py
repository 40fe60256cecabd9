"""What a run has spent of its privacy."""
