"""Inference engines: their cache events, load and answers, brought into one form."""
