"""Show it: a plan and its verification as text, pages and traces."""
