"""Which bucket a request goes to, and which replica of it."""
