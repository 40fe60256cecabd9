"""Tools for every layer: files that are written whole, locks, collectives, and the types of arguments."""
