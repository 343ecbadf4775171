"""What a reset of a card needs: which cards it takes along, who has them open, and the vendor's program that does it.

Others use: `reset_group.plan`, `device_holders` and `reset_program`. The procedure itself is the daemon's
(agent/reset/).
"""
