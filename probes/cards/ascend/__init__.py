"""Ascend cards through libdcmi.so or npu-smi."""
