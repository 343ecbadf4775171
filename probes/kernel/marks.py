"""The variables by which muster finds the processes of its jobs again, whatever has died: each inherits them from its
parent."""

#: The job, its attempt, and which of all jobs with this id it is: `supervisors/launch/environment.py`, `nonce`.
JOB_ID, ATTEMPT, NONCE = "MUSTER_JOB_ID", "MUSTER_ATTEMPT", "MUSTER_NONCE"
#: Of a service: its number. Of a step: its name. Of a session: its id.
SERVICE, STEP, SESSION = "MUSTER_SERVICE", "MUSTER_STEP", "MUSTER_EXEC_ID"


def mark(name: str, value: str = "") -> bytes:
    """The variable as /proc/PID/environ has it; how it begins, without a value."""
    return f"{name}={value}".encode()
