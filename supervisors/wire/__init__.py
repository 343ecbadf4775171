"""What muster's processes say to each other: messages, control sockets, frames of sessions."""
