"""Accelerator cards: one interface for all vendors, one snapshot of the last readings.

Others use: `driver.Driver`, `driver_settings`, `accelerator`, `view`, `visible`, `sampler`; `nvidia/` and `ascend/` are
the backends, and `drivers` finds the one that this host has. `reset/` has what a reset of a card needs;
`fabric_manager` says whether NVIDIA's runs; `pci_cards` and `no_cards` which cards the node shows without a driver.
"""
