"""Whether an attack proves more than is claimed, at a confidence that chance reaches once in a hundred thousand runs.

Transcripts come from the system's entropy, so no seed makes a test again: at 95% one in twenty would fail for nothing.
"""

from tacit.audit.mechanism import AuditResult, _bound


def beyond(result: AuditResult) -> bool:
    return _bound(result.route, result.delta, 0.99999, result.counts) > result.epsilon_claimed
