"""The clients' half of a federation: local training and evaluation."""
