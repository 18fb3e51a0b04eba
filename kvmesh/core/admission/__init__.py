"""Requests that must wait, or may not enter: the queue, its shared bounds, API keys."""
