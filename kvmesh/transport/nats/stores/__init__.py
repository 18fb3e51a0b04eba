"""Key-value and object stores on JetStream."""
