"""Jobs whose record cannot be trusted: what lives of them is ended, what they wrote is saved, what is left is removed.

`damaged_jobs.DamagedJobs` is what the registry calls; `folderless` finds jobs whose folder is not in its place;
`salvage` drains the output of ranks that no supervisor reads; `forced_removal` is `muster rm -f`.
"""
