"""The kernel's controllers, in cgroup v1, v2 or both: `hierarchies`, where this process is in each of them;
`job_limits`, what a job may have of memory, CPUs and processes; `freezer`, v1's way to end all of a job.

A node has v1 (CentOS 7), v2, or both beside each other (Ubuntu 20.04): each controller is in one of them.
"""
