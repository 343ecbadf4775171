"""Checks of the node's cards: there, healthy, linked, used by nobody else."""
