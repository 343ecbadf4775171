"""Boot modes: which processes are started, and what ModelArts and rank tables tell them."""
