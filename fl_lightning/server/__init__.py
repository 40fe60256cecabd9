"""The server's half of a federation: rounds, their checks, and the state of a run."""
