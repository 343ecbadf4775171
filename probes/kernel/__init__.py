"""Reading the kernel: /proc, sysfs, its log. Imports nothing of muster's."""
