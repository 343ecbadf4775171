"""What the kernel's log and drivers report by themselves, as findings."""
