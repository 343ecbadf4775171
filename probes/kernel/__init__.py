"""Reading the kernel: /proc, sysfs, its log; and `backoff`, for every room. Imports nothing of muster's."""
