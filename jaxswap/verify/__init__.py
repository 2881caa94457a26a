"""Is it true? The real GPU compiler's word on memory, and a replay of its schedule."""
