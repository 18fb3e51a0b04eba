"""The journal, key-value and object stores on JetStream."""
