"""What measures a router: simulated engines, traces, load, a simulator, reports, a test suite."""
