"""What the kernel's log and drivers report by themselves, as findings.

`kernel_log` follows the log, `kernel_lines` and `xids` interpret lines and Xids, `findings` turns both into findings,
`event_checks` are the checks that report them.
"""
