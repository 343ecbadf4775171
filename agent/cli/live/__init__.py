"""What a command draws on a terminal while it works.

`status_line` is the line below the output of `muster run`, `output_tail` knows where it may stand, `job_line` and
`step_rate` say what is in it, `work_line` is one for other long work. `top_live` is `muster top`: `top_screen`,
`top_choice` (keys), `recent`; `top_table` is one look without a terminal. Commands import them when they need them.
"""
