"""Commands beside the ranks of a job (`muster exec`). The supervisor keeps them, with or without an attached client.

The gang uses `sessions.Sessions`.
"""
