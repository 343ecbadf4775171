"""Which job has which card: chosen, leased, and free again only when the driver says so.

Others use: `leasing.Leasing` and `leases.Lease`; `placement` for the ranks of a spec, `holders` for who is on a card,
`doubts` for how far a card is to be trusted, `release` for when it is free, `cards_now` for what it is called now.
"""
