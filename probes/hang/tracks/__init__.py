"""What the hang rule remembers of cards and ranks from one record to the next.

`state` is all that a detector keeps, `card_track` one card of it, `rank_track` one rank, `rank_wait` where that waits;
`card_look` decides what a card does now, `level` what is usual for a reading.
"""
