"""Logs of jobs: read, followed, merged, compressed, uploaded, removed.

Ranks' files are written by supervisors (`muster.supervisors.output`); this room does everything later.
Others use: `log_reading`, `line_search`, `log_stream`, `log_events`, `log_losses`, `labels`, `line_filter`,
`logs_in_place`, and the tasks
`log_keeping.LogKeeping` and `collecting.Collecting`. The room `pieces` searches much output for `logs_in_place`.
"""
