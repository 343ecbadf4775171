"""Why a job ended, or what is wrong with it: a pipeline of facts -> report -> page.

`facts` gathers what is known (events, logs, history), `causes/` judges it, and `signatures` is the table of known
errors in output. `report.report` returns the answer as one typed structure, and `page.page` prints it. JSON is made in
agent/api/report_json.py. `explaining` writes the explained verdict of each failed job; `known` names the parts of the
daemon that all of that needs.
"""
