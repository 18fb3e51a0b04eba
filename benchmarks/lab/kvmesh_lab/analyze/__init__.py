"""`kvmesh analyze`: what of a load could be reused, and what to set for it."""
