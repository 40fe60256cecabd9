"""Configuration files: where they are found, how they build on each other, and what a wrong value is told."""
