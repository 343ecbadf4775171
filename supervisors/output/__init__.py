"""Output of ranks: from their FIFO into a file, rotated, indexed, counted; and what was lost of it.

Supervisors use `job_output.Output`; its parts are `tee`, `splicing`, `log_file`, `rotation`, `log_compressor` and
`gaps`.
Readers (the daemon) use `log_layout`, `log_reader`, `log_segments`, `log_names`, `log_removals`, `time_index`,
`gzip_members` and `time_lookup`.
"""
