"""Runs in each Ray Train worker: forks its rank from a warm forkserver and watches it. Knows Ray, never torch."""
