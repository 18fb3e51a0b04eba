"""Every setting of every role: names, defaults, bounds."""
