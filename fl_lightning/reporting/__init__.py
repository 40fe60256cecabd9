"""Reports on updates, clients and partitions to loggers, files and the terminal."""
