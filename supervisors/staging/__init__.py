"""Copies code, inputs and outputs of a job: a separate program, which a supervisor runs as a step, as the job's user.

Begin with `stage.py`. Only this room imports fsspec, and nothing of daemon, nursery or supervisor imports this room.
"""
