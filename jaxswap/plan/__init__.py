"""What to do: a decision per value, and the planners that make them."""
