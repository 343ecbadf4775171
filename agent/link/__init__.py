"""Connections to the other processes of muster: nursery, supervisors, sessions.

Others use: `nursery_client.NurseryClient`, `supervisor_client`, `exec_link`, `connection` with its errors, and
`holds`, the FIFOs that the daemon keeps open. `nursery_start` starts a nursery, `silent_nursery` replaces one
that does not answer.
"""
