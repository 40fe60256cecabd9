"""How a client is trained: engines with the same results and other costs."""
