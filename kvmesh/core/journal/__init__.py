"""The event stream: numbered, ordered, replayed and compared, by publishers and replicas."""
