"""How large a fleet one bucket serves: measured costs of each message, and what follows of them."""
