"""What decides: queues, admits, places and revives jobs. Never imports torch."""
