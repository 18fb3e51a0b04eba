"""Sites in virtual time: who serves a request where, by several rules."""
