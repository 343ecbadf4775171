"""Jobs whose record cannot be trusted: musterd ends their processes, saves their output and removes their files.

`damaged_jobs.DamagedJobs` is what the registry calls; `folderless` finds jobs whose folder is not in its place;
`salvage` drains the output of ranks that no supervisor reads; `forced_removal` is `muster rm -f`.
"""
