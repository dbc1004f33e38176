"""How hypothesis is used as a fuzzer."""

from hypothesis import HealthCheck, Phase, settings


def fuzzing(examples: int) -> settings:
    """So many examples, the same ones in every run, each taking the time that a service takes."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
