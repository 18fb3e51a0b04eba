"""What is tried over bare gRPC: the picker's answers, message by message."""
