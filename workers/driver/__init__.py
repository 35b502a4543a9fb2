"""One per job and generation: places attempts, decides rounds, obeys the desired state, reports."""
