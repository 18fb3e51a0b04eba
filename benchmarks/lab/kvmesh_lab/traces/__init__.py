"""Request traces: read, checked, and turned into prompts."""
