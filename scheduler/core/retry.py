"""When a task whose attempt failed or was lost may run again. Pure."""


def retry_delay_s(backoff_s: float, tries: int) -> float:
    """Seconds before the next attempt: `backoff_s` after the first failed one, then twice as long each time."""
    return backoff_s * 2.0 ** (max(1, tries) - 1)
