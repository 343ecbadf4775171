"""Queries to the node: checks, accelerator backends, the sampler, stacks, communication libraries, and the hang rule.

Nothing here imports anything else of muster: a probe gets what it needs as arguments and returns plain data.
Rooms from the bottom up: `kernel`, `calls`, `cards` and `hang`, `checks`, `stacks` and `library`, `node`. `settings`
defines what a setting is, for these rooms and for the daemon's configuration; `typed` reads JSON and plain values as
values of a type.
"""
