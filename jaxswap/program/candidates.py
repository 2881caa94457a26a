"""Candidates: stub."""
def add_candidates(program, graph, links, named):
    return program
