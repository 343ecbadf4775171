"""What only a real NVIDIA card shows: tests of a whole node (`make test-gpu`), and a record of what NVML answers."""
