"""What a pretend vLLM does as SGLang would, when it is asked to."""
