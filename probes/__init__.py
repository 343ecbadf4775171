"""Is this node fit? Checks before a start, accelerator backends, the sampler and the hang rule.

Nothing here imports anything else of muster: a probe gets what it needs as arguments and gives back plain data.
Rooms from the bottom up: `kernel`, `calls`, `cards` and `hang`, `checks`, `stacks`, `node`. `settings` says what a
setting is, for these rooms and for the daemon's configuration.
"""
