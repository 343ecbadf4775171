"""The hang rule: three ordered tables. Read them top to bottom.

`signs_of_life.py` is table 1 (evidence), `explanations.py` table 2 (what may take long), `patterns.py` table 3 (what is
said, in which case, about whom); the rows for idle cards are in `patterns_idle.py`. `evaluator.py` walks them.
`explanation` and `pattern` say what a row is. docs/reference/hang-rule.md is made from them.
"""
