"""Plants faults in copies of the tree, and says which of them the tests notice."""
