"""The reports of a job's nodes as one report, on one time axis.

Others use: `merging.merged`, which makes it of those that `merging.read` has read from their JSON files.
"""
