"""Why a job ended, or what is wrong with it: the page of `muster why`, and the same as JSON.

`gathering` is what others call. `facts` reads what is known (events, logs, history), `cause` and the `causes_*` modules
judge it, `report` is the answer as data, `page` as text. `signatures` is the table of known errors in output.
"""
