"""Client connections: bytes in, whole requests out, answers back."""
