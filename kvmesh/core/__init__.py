"""The pure core: what is cached where, who is there, what a request costs, and where it goes."""
