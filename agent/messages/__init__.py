"""Between the daemon's data and the messages of muster.v1: the one room that knows both.

`convert` is the daemon's; `spec_message` is the part that a command needs, too, and imports little for that reason.
Others use both modules as they are.
"""
