"""Engines and routers in virtual time, with the production decisions."""
