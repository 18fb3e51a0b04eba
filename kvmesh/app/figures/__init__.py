"""Every number that people are shown: what it is, how it is read and where it appears."""
