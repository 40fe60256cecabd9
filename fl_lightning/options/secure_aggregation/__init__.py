"""Secure aggregation: the server learns the sum of the clients' messages and no single one."""

from fl_lightning.options.secure_aggregation.settings import SecureAggregation

__all__ = ["SecureAggregation"]
