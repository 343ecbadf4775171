"""What a job is: spec, states, records of its journal, and what they add up to.

No process and no output here. The spec: `spec`, `spec_fields`, `notify_rules`. The journal: `journal`, `ledger` (its
writer). The job: `states`, `lifecycle`, `replay`, which supervisor and daemon both go through. Decisions: `verdict`,
`restart`, `card_identity`. What supervisors know of the configuration: `settings_file`.
"""
