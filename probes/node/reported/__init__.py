"""What the kernel's log and drivers report by themselves, as findings.

`kernel_log` follows the log, `kernel_lines`, `xids` and `npu_codes` interpret lines, Xids and the fault codes of Ascend
chips, `findings` turns them into findings, `event_checks` are the checks that report them.
"""
