"""The engine ``fabric``: a lean loop, as on Lightning Fabric."""
