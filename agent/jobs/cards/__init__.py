"""Which job has which card: cards are chosen, leased, and free again only when the driver shows that.

Others use: `leasing.Leasing` and `leases.Lease`; `placement` for the ranks of a spec, `holders` for the processes on a
card, `doubts` for how far a card can be trusted, `release` for when it is free, `cards_now` for its present number and
name.
"""
