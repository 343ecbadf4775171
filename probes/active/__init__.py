"""Active checks: short tests that work on a card, to see whether it computes right and as fast as it should.

Others use: `active_check.check`, which runs them for some cards and judges what they measured, `active_settings`, and
`card_limits`, what is expected of a model. `card_program` is the program that does the work, one process for a test, on
the driver's API alone (`cuda`, `kernels`).
"""
