"""The checks of tools/gpu_checks.py."""
