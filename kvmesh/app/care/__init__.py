"""Members that fail or fall silent: asked, left out, taken back, named."""
