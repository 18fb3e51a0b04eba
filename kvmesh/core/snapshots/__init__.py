"""A whole index as bytes: written, checked, read, and which of them count."""
