"""The health of the node: what is wrong with it now, and whether it accepts jobs.

`health.NodeHealth` is what other rooms call. `node_watch` runs the checks of `muster.probes`, `conditions` and
`condition_rules` say how long a finding counts, `node_file` keeps it over a reboot. `all_checks` runs every check at
once for a person, `active_look` lets cards work for that, `degraded` finds what the daemon cannot do now, `node_notes`
writes events. `driver_crashes` keeps a driver closed whose library crashed the daemon.
"""
