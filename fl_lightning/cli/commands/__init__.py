"""Commands that need no training."""
