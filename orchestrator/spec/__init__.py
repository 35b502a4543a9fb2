"""From the text of a job file to a `JobSpec`, or to every mistake in it with its line and remedy."""
