"""The command that jobs belong to (`muster run --standalone`): its jobs must not outlive it.

The command holds one end of a pipe. Its daemon, the nursery and every supervisor hold the other end, and see it close
when the command ends in whatever way. Then daemon and supervisor both stop the job, as one stop; the nursery passes the
pipe to a successor. So any two of the three may be killed together with the command.
"""

#: Where nursery and supervisors have it.
FD = 3
#: The reason of the stop that follows.
GONE = "the command that started it has ended"
