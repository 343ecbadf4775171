"""The commands, one module each: `main` loads the module of the command that was typed, and no other.

`run` (and start), `jobs` (stop, wait, rm), `ps`, `look` (status), `logs`, `exec`, `events`, `top`, `stacks`, `hang`,
`check`, `node`, `debug`, `service`. `service_files` (and completion) belongs to `service` and to the packages
(scripts/release/); `explain/` has `why` and `report`, `kube/` has `kube`.
"""
