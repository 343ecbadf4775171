"""The report of a node: some days of its conditions, drains, jobs, cards and losses, from the disk.

Others use: `node_gathering.collect`, and `node_writing`, which makes files of what that returns. `node_overview` is the
data, `node_lanes` what lasted, `node_jobs` its jobs, `node_page` and `node_markdown` the pages.
"""
