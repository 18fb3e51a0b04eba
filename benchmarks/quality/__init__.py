"""How good decisions are, against other routers and an oracle."""
