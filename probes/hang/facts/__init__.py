"""A job at one record, as the tables read it: its signs of life, what its cards and ranks do, which rank stands out.

`moment.JobMoment` has all that a condition may ask for. `signs.py` has the signs of life, `readings.py` what cards do
and since when the job is silent, `host.py` what ranks do on the host, `odd_ranks.py` the ranks that differ, `proof.py`
what stacks prove.
"""
