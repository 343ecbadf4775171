"""What the hang rule remembers of cards and ranks from one record to the next."""
