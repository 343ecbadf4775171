"""The report of a job as one file to look at: collect facts -> one typed structure -> pages.

Others use: `on_disk` (what a node's folders know, without a daemon), `gathering.collect`, `job_report.JobReport`,
`writing`, which makes files of it, and `failed_jobs`, which does so for the daemon. `plots`, `lanes`, `moments` and
`thinning` make the pictures' data, `html_page`, `html_parts`, `pictures` and `svg` the page, `markdown` the text, all
of it with `escaping`. What it says of a job comes from agent/why.
"""
