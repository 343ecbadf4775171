"""The daemon's configuration: every key, its default, and what is said about a file that is wrong.

Others use: `schema.Config` and its tables.
"""
