"""Why a job ended, or what is wrong with it: a pipeline of facts -> report -> page.

`facts` gathers what is known (events, logs, history) from the parts of the daemon in `known`, `causes/` judges it, and
`signatures` is the table of known errors in output, whose parts `log_stretch` reads. `report.report` returns one typed
structure, `page.page` prints it; JSON: agent/api/report_json.py. `explaining` writes the explained verdicts.
`agent/report` uses `around` and `words`, too.
"""
