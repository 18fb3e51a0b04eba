"""Several fleets with a network between them: who serves a request where, by several rules."""
