"""Checks of the node's cards: present, healthy, linked, free of foreign processes.

`node_checks` uses `presence`, `inventory`, `card_health`, `links`, `fabric_service`, `npus` and `leftovers`: one check
or a few each.
"""
