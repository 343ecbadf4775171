"""The protocols between muster's processes.

`messages`: one JSON object per line. `control`: a socket for these messages. `link`: from a supervisor to its nursery.
`frames`: between a session and its client, after a message has turned the connection over to them.
`explained_end`: what the daemon tells a supervisor of a job's cause.
"""
