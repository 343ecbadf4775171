"""The budgets of muster, each measured beside its peer in the same run: `python -m benchmarks [NAME...]`.

Method and results: docs/concepts/performance.md.
"""
