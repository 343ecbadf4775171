"""The last days of node, cards and jobs, in a SQLite file.

Others use: `history_store.History`, `history_disk.DiskHistory` for the file without a daemon, and `history_rows` for
what goes in and comes out. `history_db` writes the file, `history_queries` asks it.
"""
