"""Accelerator cards: one shape for all vendors, one snapshot of what is known.

Others use: `driver.Driver`, `accelerator`, `view`, `visible`, `sampler`; `nvidia/` and `ascend/` are the backends, and
`drivers` tries which of them this host has.
"""
