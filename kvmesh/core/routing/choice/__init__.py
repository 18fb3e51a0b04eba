"""Which worker takes a request: what the compiled core is asked, and what it answers."""
