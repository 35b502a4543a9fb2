"""What trains: one driver per job, an agent per Ray Train worker, a rank process per agent."""
