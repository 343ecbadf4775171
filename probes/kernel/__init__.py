"""Reading the kernel: /proc, sysfs, its log. Imports nothing of muster's; every room may import it.

`process` knows processes by identity and how they end, `procfs` reads many of them cheaply, `trees` says which belong
to which job, `kmsg` follows the kernel's log, `pci` looks at devices. `endings` puts an end into words; `backoff` is
the one class for pauses that grow.
"""
