"""What a command draws on a terminal while it works.

`status_line` is the line below the output of `muster run`, `output_tail` knows where it may stand,
`job_line` and `step_rate` say what is in it. `top_screen` and `top_keys` are `muster top`. Imported only at a terminal.
"""
