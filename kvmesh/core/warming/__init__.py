"""Engines that join are given the prefixes that will be asked for, before they serve."""
