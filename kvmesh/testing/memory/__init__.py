"""Every port in memory, able to fail on purpose."""
