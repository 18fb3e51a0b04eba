"""A router that tunes itself: its trace, the child process that searches, the task that looks."""
