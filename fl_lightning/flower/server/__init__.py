"""The server of a federation of sites: which sites it asks, and what it accepts."""
