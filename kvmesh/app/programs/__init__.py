"""Programs of agents at a running router: what is shown of them, and done for them."""
