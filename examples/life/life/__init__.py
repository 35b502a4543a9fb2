"""A user's own package: Conway's Game of Life, learned from pairs of boards."""
