"""Checks of the node's cards: there, healthy, linked, used by nobody else.

`node_checks` uses `presence`, `inventory`, `card_health`, `links`, `npus` and `leftovers`: one check or a few each.
"""
