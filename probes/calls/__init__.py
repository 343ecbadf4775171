"""Calls that may hang or take long: each bounded, each in a thread or process that nobody depends on."""
