"""The journal on JetStream: appended, followed, kept."""
