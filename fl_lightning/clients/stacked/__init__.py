"""The engine ``stacked``, which trains several clients at once with vmap."""
