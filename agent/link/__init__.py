"""Connections to the other processes of muster: nursery, supervisors, sessions.

Others use: `nursery_client.NurseryClient`, `supervisor_client`, `exec_link`, and `connection` with its errors.
"""
