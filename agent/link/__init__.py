"""Connections to the other processes of muster: nursery, supervisors, sessions.

Others use: `nursery_client.NurseryClient`, `supervisor_client`, `exec_link`, `connection` with its errors, and
`holds`, the FIFOs that the daemon keeps open. `silent_nursery` replaces a nursery that does not answer.
"""
