"""Resets a card: drain the node, wait for the card's jobs, close the driver, reset and test the card, undrain the node.

Others use: `resets.Resets`, the only way to a reset, and `reset_report` for what it reports meanwhile. `reset_run` is
the procedure, with `reset_target` (which card?), `other_users` (who has it open?), `card_return` (is it back?) and
`last_tests` (is it in order?); `reset_file` is what survives the daemon, `own_resets` decides on resets that nobody
asked for, and `drain_tests` tests the free cards of a drained node. The programs and rules of the vendors are in
probes/cards/reset/.
"""
