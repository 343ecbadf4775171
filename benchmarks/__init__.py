"""The budgets of muster, each measured beside its peer in the same run: `python -m benchmarks [NAME...]`.

What is measured and what came out is told in docs/concepts/performance.md.
"""
