"""Is this node fit? Checks before a start, accelerator backends, the sampler and the hang rule.

Nothing here imports anything else of muster: a probe gets what it needs as arguments and gives back plain data.
"""
