"""What a job may not do: decided when the job is accepted, from its spec and the settings of this node, and written
into its journal (`supervisors/model/hardening.py`). Its supervisor carries that out (`supervisors/launch/hardening/`).

Others use `decided`, and `private_tmps`, which removes what a killed supervisor left behind; seccomp_profile,
 seccomp_filter and syscalls are its own.
"""
