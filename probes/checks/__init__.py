"""What a check is, what it says, and the checks before a start.

Others use: `result`, `codes`, `precheck`.
"""
