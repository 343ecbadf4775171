"""What a job is: spec, states, records of its journal, and what they add up to.

No process and no output here. Supervisor and daemon both replay the journal through `replay`.
"""
