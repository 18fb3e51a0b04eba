"""One process: event loop, actors on it, signals, limits, and supervised child processes."""
