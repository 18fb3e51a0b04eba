"""What is peculiar to vLLM."""
