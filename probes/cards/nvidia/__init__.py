"""NVIDIA cards through NVML."""
