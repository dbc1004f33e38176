"""Why a model could not be loaded. The messages are for the person who chose the model."""


class ModelLoadError(Exception):
    """A model could not be loaded."""


class CheckpointError(ModelLoadError):
    """The checkpoint is missing, incomplete, damaged or does not match its own configuration."""


class UnsupportedModelError(ModelLoadError):
    """The checkpoint is of a kind Octavo does not run. The message names what was found and what is supported."""
