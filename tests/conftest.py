from hypothesis import settings

settings.register_profile("ullage", deadline=None, print_blob=True)  # a busy machine is slow, not wrong
settings.load_profile("ullage")

pytest_plugins = ["tests.support"]
