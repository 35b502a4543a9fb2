"""What the control plane reads of a run directory, following no link out of it, and the holds that it places there."""
