"""The budgets of muster, each measured beside its peer in the same run: `python -m benchmarks [NAME...]`.

docs/contributing/benchmarks.md describes them, docs/concepts/performance.md has the results.
"""
