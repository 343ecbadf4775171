"""What a command draws on a terminal while it works.

`at_terminal` draws a status line, of a job or of other long work, where there is a terminal for it: `status_line` is
the line below the output, and where it may stand; `job_line` and `step_rate` say what is in it. `top_live` is
`muster top`: `top_screen`, `top_choice` (keys), `recent`; `top_table` is one look without a terminal. Commands import
them when they need them.
"""
