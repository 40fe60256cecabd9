"""The engine ``stacked``: several clients at once, by vmap."""
