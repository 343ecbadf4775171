"""The open corpus of the hang rule: 34 scenarios as seeded, jittered telemetry, and what must be said of each.

`python -m tests.corpus` measures the rule on it, beside the plain one; docs/contributing/hang-corpus.md has the
figures. rows.py has scenarios of single rows of the rule's tables, variations.py more healthy life. acted.py has most
of the 34 played by real processes under a real daemon (`--acted`).
"""
