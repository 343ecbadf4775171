"""Reading the kernel: /proc, sysfs, its log. Imports nothing of muster's; every room may import it.

`process` identifies processes and reads how they ended, `open_files` lists their descriptors, `procfs` reads many of
them cheaply and finds new ones, `trees` assigns them to jobs, `job_traffic` counts what these move over the network,
`marks` has the variables by which they are found again. `kmsg` reads and follows the kernel's log, `pci` reads devices,
`mount_table` what is mounted. `endings` describes an end in words; `number_lists` reads and writes lists such as 0-3,7;
`known_names` has names that several rooms know and muster does not choose; `backoff` is the class for growing pauses,
`dataclass` the decorator that every class of values has; `late_import` is for imports that wait.
"""
