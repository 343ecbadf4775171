"""Why a job ended, or what is wrong with it: a pipeline of facts -> report -> page.

`facts` gathers what is known (events, logs, history), `causes/` judges it, and `signatures` is the table of known
errors in output. `report.report` is the answer as one typed structure, and `page.page` prints it. The JSON form is made
at the border: agent/api/report_json.py. `explaining` gives each job that failed its explained verdict.
"""
