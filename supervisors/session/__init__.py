"""Commands beside the ranks of a job (`muster exec`): kept by the supervisor, whoever is attached.

The gang uses `sessions.Sessions`.
"""
