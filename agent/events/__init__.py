"""What happened on this node, in order, on disk.

Others use: `event_store.EventStore` and `event_store.Event`; `story` makes events of a journal's records,
`disk_events` reads those of a node without its daemon.
"""
