"""From a process spec to a running command: the steps between creation and command (`start_steps`), and two ways to
create a process, the program `muster-spawn` and a fork of the supervisor. Meanwhile the loop goes on (`underway`).

Others use: `new_processes`, `underway`, `program_start` (the program is opened once, by the nursery).
"""
