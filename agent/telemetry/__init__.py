"""What cards and jobs do: sampled, kept as the latest, recorded, and handed out.

Others use: `sampling.Telemetry`, `records`, `job_processes`, `job_usage`, `freshness`; `history/` is what is kept on
disk. `recording` writes records to the file that an operator named.
"""
