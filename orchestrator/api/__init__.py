"""The HTTP door: routes parse, call the service and render. Importing this package loads no web framework."""
