"""A black-box conformance suite for endpoint pickers of the Gateway API Inference Extension."""
