"""Run one client's fit, whichever engine trains: its session, its place in the whole training, and what it keeps."""
