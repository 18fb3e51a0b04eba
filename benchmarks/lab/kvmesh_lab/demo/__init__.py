"""`kvmesh demo`: what routing by cache is promised to do, and what it does."""
