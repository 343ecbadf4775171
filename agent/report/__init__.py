"""The report of a job as one file to look at: collect facts -> one typed structure -> pages.

Others use: `on_disk` (what a node's folders know, without a daemon), `collecting.collect`, `job_report.JobReport`, and
`writing`, which makes files of it. `plots`, `lanes` and `thinning` make the pictures' data, `html_page`, `html_parts`
and `svg` the page, `markdown` the text. What is said of a job is said by agent/why.
"""
