"""What muster's processes say to each other.

`messages` is one JSON object a line, `control` a socket that speaks them, `link` what a supervisor tells its nursery,
`frames` what a session and its client send once a line has made the connection theirs.
"""
