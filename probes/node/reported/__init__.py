"""What the kernel's log and drivers report by themselves, as findings.

`kernel_log` follows the log, `kernel_lines` and `xids` say what a line or an Xid means, `findings` makes findings of
both, `event_checks` are the checks whose results come of them.
"""
