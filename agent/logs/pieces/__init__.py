"""Much output on this machine, searched in pieces, by the command and by processes that help it.

`logs_in_place` uses `search_pool`. `piece_search` searches one piece, and is the program of the processes.
"""
