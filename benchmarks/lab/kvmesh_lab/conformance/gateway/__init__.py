"""What is tried through a real Envoy: what a client and the model servers see."""
