"""The commands, one module each: `main` loads the module of the command that was typed, and no other.

`run`, `jobs` (start, stop, wait, rm, ps), `look` (status), `logs`, `exec`, `events`, `top`, `stacks`, `hang`,
`check`, `node`, `debug`, `service`. `check_words` belongs to `check`, `service_files` to `service` and to the packages
(scripts/release/); `explain/` has `why` and `report`, `kube/` has `kube`.
"""
