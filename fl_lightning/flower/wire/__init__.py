"""The line between them: Flower, certificates, keys, and the server's processes."""
