"""What is peculiar to SGLang."""
