"""The engine behind the pretend vLLM: paged cache, scheduler, timing, faults; pure."""
