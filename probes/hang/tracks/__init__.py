"""What the hang rule remembers of cards and ranks from one record to the next.

`state` is all that a detector keeps, `card_track` one card of it, `rank_track` one rank, `proc_track` one process of
that, `rank_wait` where a rank waits; `card_look` decides what a card does now, `level` what is usual for a reading.
"""
