"""The engine ``fabric``: a lean loop on Lightning Fabric."""
