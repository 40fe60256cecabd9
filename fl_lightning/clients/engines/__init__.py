"""Engines that train clients: the same results at different costs."""
