"""What a job is: spec, states, records of its journal, and what they add up to.

Nothing here touches processes or output. The spec: `spec`, `spec_fields`, `notify_rules`. The journal: `journal`,
`ledger` (its writer). The job: `states`, `lifecycle`, `replay`, shared by supervisor and daemon; `rank_ends` says how
its ranks ended. Decisions: `verdict`, `restart`, `card_identity`. Its logs by number: `job_logs`; what its nodes say of
each other: `node_ends`. What is copied before and after the ranks: `staging_urls`, `staging_progress`. What a job may
not do: `hardening`. `rules/`: what some fields of the spec may be.
"""
