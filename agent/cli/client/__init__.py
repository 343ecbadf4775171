"""How commands reach a daemon: where it is, calls that survive its restart, and one of their own."""
