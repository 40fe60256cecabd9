"""A federation of your own."""
