"""What the control plane reads of a run directory. It writes nothing there, and follows no link out of it."""
