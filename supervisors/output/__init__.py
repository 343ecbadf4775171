"""Output of ranks: from their FIFO into a file, rotated, indexed, counted; and what was lost of it.

Supervisors use `job_output.Output`; its parts are `tee`, `splicing`, `log_file`, `rotation`, `log_compressor` and
`gaps`.
Readers (the daemon) use `log_layout`, `log_reader`, `log_segments`, `log_removals`, `gzip_members`, `time_index` and
`time_lookup`.
"""
