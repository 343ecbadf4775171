"""What cards and jobs do: sampled, kept as the latest, recorded, and handed out.

Others use: `sampling.Telemetry`, `records`, `job_processes`, `freshness`; `history/` is what is kept on disk.
"""
