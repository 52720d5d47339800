"""For all tests: no property test fails because the machine was slow, and whoever wants a database gets one."""

from hypothesis import settings

pytest_plugins = ["database_fixtures"]

settings.register_profile("gpudeck", deadline=None)
settings.load_profile("gpudeck")
