"""What a person sees, drawn from values: pure functions from API views to Rich renderables."""
