"""`make release`: everything that a version publishes, made from the commit that is checked out."""
