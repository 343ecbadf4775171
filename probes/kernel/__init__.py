"""Reading the kernel: /proc, sysfs, its log. Imports nothing of muster's; every room may import it.

`process` identifies processes and reads how they ended, `open_files` lists their descriptors, `procfs` reads many of
them cheaply, `arrivals` finds new ones, `trees` assigns them to jobs, `kmsg` follows the kernel's log,
`process_crashes` finds in it processes that died of a fault, `pci` reads devices. `endings` describes an end in words;
`number_lists` reads and writes lists such as 0-3,7; `backoff` is the class for growing pauses, `dataclass` the
decorator that every class of values has; `late_import` is for imports that wait.
"""
