"""The hang rule: three ordered tables. Read them top to bottom.

`signs_of_life.py` is table 1 (evidence), `explanations.py` table 2 (what may take long), `patterns.py` table 3 (the
verdict for each case, and the ranks that it names); `patterns_idle.py` has the rows for idle cards. `evaluator.py`
walks them. `explanation` and `pattern` define a row. docs/reference/hang-rule.md is generated from them.
"""
