"""Output of ranks: from their FIFO into a file, rotated, indexed, counted; and what was lost of it.

Supervisors use `output.Output`. Readers (the daemon) use `log_layout`, `log_reader`, `time_index`.
"""
