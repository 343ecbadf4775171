"""What the commands about the node's fitness share.

`gate` answers a scheduler, `check_words` are the words of `muster check` about findings, `drills` marks findings of a
drill, `crash_guard` keeps a check from ending with a driver's library.
"""
