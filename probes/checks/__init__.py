"""What a check is, its codes and results, and the checks before a start.

Others use: `result`, `codes`, `precheck`, `check_settings`; `card_checks` for the cards that are wanted, `custom` for
checks of the operator's own, `ulimits` for the limits that ranks get.
"""
