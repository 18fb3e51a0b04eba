"""One process: event loop, signals, limits, and supervised child processes."""
