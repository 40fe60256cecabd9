"""The server of a federation of sites: whom it asks, and what it takes."""
