"""Boot modes: which processes are started, and what ModelArts and rank tables tell them.

`boot` has a row for each mode, `modelarts` the platform's variables, `presets` MindSpore's. `ranktable` says where the
ranks of an Ascend job are, `ranktable_json` reads such a file strictly.
"""
