"""Settings every test file shares."""

from hypothesis import settings

settings.register_profile("harness", deadline=None)  # a busy machine is not a failed test
settings.load_profile("harness")
