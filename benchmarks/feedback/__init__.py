"""What is lost where a gateway shows a picker little of the answers, or nothing."""
