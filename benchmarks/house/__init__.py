"""How a source tree is built: sizes, folders, imports, and what a request passes in it."""
