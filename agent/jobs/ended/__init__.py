"""Jobs that have ended: one row each in memory, everything else on disk.

Others use: `ended_index.EndedJobs` and `ended_row.Ended`; `ended_scan` reads rows from journals,
`collected_logs` knows which logs belong to jobs whose records were removed.
"""
