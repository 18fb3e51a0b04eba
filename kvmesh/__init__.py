"""KV-cache-aware request routing for LLM engines."""
