"""A site: what it answers, what leaves it, and its commands."""
