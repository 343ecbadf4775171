"""Which job has which card: chosen, leased, and free again only when the driver says so.

Others use: `leasing.Leasing`, `leases.Lease`; `doubts` says how far a card is to be trusted.
"""
