"""What the step is: its ops, its values, when each is alive, what may be done with it."""
