"""Test machinery: nothing that serves imports it."""
