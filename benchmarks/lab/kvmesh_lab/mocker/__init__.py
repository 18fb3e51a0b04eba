"""`kvmesh mocker`: a pretend vLLM over real HTTP and ZMQ; no model, no GPU."""
