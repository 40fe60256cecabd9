"""Keep what one client's training leaves in the shared module and in Python from reaching the next client."""
