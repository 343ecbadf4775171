"""Boot modes: which processes muster starts, and what it takes from ModelArts' variables and rank tables.

`boot` has a row for each mode, `modelarts` the platform's variables, `presets` MindSpore's. `ranktable` knows the place
of each rank of an Ascend job, `ranktable_json` reads such a file strictly.
"""
