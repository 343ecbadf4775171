"""The checks of the node and its cards, one module per thing that is looked at; `probes.node_checks` is their front."""
