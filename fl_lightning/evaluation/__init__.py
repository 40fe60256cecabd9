"""Evaluate every model of a federation at every client, without training."""
