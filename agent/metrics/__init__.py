"""Metrics for Prometheus: the page, the endpoint that serves it, and the file for node_exporter.

Others use `exporter.Metrics` and `slow_metrics.SlowMetrics`.
"""
