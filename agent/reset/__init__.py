"""A sick card comes back: drain, wait for its jobs, let go of the driver, reset it, test it, take it into service.

Others use: `resets.Resets`, the only way to a reset, and `reset_report` for what it tells meanwhile. `reset_run` is the
procedure, `reset_file` what survives the daemon, and `drain_tests` tests the free cards of a drained node. The programs
and rules of the vendors are in probes/cards/reset/.
"""
