"""`kvmesh plan`: the engines that are enough for a load, and how well that was foretold before."""
