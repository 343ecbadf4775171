"""What a job is: spec, states, records of its journal, and what they add up to.

Nothing here touches processes or output. The spec: `spec`, `spec_fields`, `notify_rules`. The journal: `journal`,
`ledger` (its writer). The job: `states`, `lifecycle`, `replay`, shared by supervisor and daemon. Decisions: `verdict`,
`restart`, `card_identity`. What a job may not do: `hardening`, `capabilities`. The settings that
supervisors need: `settings_file`.
"""
