"""vLLM's request and answer shapes, to the byte."""
