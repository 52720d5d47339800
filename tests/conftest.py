"""For all tests: no property test fails because the machine was slow."""

from hypothesis import settings

settings.register_profile("gpudeck", deadline=None)
settings.load_profile("gpudeck")
