"""The command that jobs belong to (`muster run --standalone`): what nobody is left to want must not run on.

It holds the one end of a pipe. Its daemon, the nursery and every supervisor hold the other, which ends when the command
has ended, in whatever way. Daemon and supervisor each stop the job then, and it is one stop; the nursery passes the
pipe on to a successor. So any two of the three may be killed together with the command.
"""

#: Where nursery and supervisors have it.
FD = 3
#: The reason of the stop that follows.
GONE = "the command that started it has ended"
