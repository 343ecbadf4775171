"""Active checks: short tests that work on a card, to see whether it computes right and as fast as it should.

Others use: `active_check.check`, which runs them for some cards and judges what they measured, `active_settings`, and
`card_limits`, what is expected of a model. The work is done by programs, one process for a test: `card_program` and
`peer_program` on the driver's API alone (`cuda`, `kernels`), `torch_program` under an interpreter of the site's;
which one when: `active_programs`. `program_run` runs one, `bounded` ends it with who wanted it.
"""
