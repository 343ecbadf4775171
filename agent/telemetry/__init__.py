"""Telemetry of cards and jobs: samples them, keeps the latest readings, and makes records.

Others use: `sampling.Telemetry`, `records`, `job_processes`, `job_usage`, `freshness`; `history/` stores readings on
disk. `recording` writes records to the file that the operator configured.
"""
