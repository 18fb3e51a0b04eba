"""Prefill on one worker and decode on another: what may be split, and whether it is worth it."""
