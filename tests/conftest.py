"""What holds for all tests."""

from hypothesis import settings

# A machine may be busy: how long an example takes is no property of the code.
settings.register_profile("shardyard", deadline=None)
settings.load_profile("shardyard")
