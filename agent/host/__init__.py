"""The daemon's own process on this host. No module knows of jobs; each is used by itself.

Folders and files: `state_folder`, `log_folder`, `ownership`, `state_file`, `lockfile`. The process: `early_signals`,
`end_signals`, `systemd`, `heap`, `turns`, `build`. Its log: `log_setup`, and `systemd`. Programs that
the configuration names: `operator_program`. Whether the kernel lets us have enough threads: `task_room`.
"""
