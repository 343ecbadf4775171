"""The open corpus of the hang rule: 34 scenarios as seeded, jittered telemetry, and what must be said of each.

`python -m tests.corpus` measures the rule on it, beside the plain one; docs/concepts/hang.md has the figures. acted.py
has most of them played by real processes under a real daemon (`--acted`).
"""
