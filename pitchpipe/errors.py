"""Every error Pitchpipe raises on purpose.

PitchpipeError                    500  exit 1
├── InvalidInput                  400  exit 2   the caller sent something wrong; the message names what
│   ├── InvalidModel              400           a model that cannot be read or is not allowed
│   │   ├── UnsupportedOperator   400           names the operator and its node
│   │   └── UnsupportedShape      400           dynamic or absurd shapes; names the tensor
│   ├── InvalidTarget             400           unknown kind, attribute or value
│   ├── InvalidTrace              400           a trace outside the allow-list, or malformed
│   ├── InvalidReport             400           a time of 0, -1, NaN or 1e300, an unknown candidate, ...
│   └── TooLarge                  413           a body or a model over its cap
├── Unauthorized                  401  exit 4
├── Forbidden                     403  exit 4
├── NotFound                      404  exit 3   absent, or another project's: the two are not told apart
├── Conflict                      409  exit 1
│   ├── StaleLease                409           the lease expired or an older fencing token was used
│   ├── IdempotencyConflict       409           the same key came with another body
│   ├── InvalidTransition         409           the state machine says no; the message tells the history
│   └── NoDevice                  409           neither this machine nor a registered worker has such a device
├── Overloaded                    503  exit 5   carries retry_after_secs
├── Unreachable                   503  exit 5   the service did not answer
├── DeadlineExceeded              504  exit 124
│   └── StepTimeout               504           a step passed its limit of time; names the step and the limit
├── SchemaMismatch                503  exit 1   the database's schema is not this version's; says what to run
├── JobFailed                     500  exit 1   a job ended without a result
├── StepFailed                    500  exit 1   a step raised what nobody expected; names the step and the error
├── IntegrityError                500  exit 1   bytes do not match their digest
├── NotReady                      503  exit 1   what was asked for is still being built
├── ArtifactRefused               500  exit 1   a compiled model crashed, hung or failed in its proof run
├── WrongResult                   500  exit 1   a compiled model differs from its framework's outputs; names the operator
└── MeasurementFailed             500  exit 1   a child died or a build failed; carries a failure kind
    └── StepDied                  500           a step ended without an answer; names the step and the signal or limit
"""

from __future__ import annotations

__all__ = [
    "ArtifactRefused",
    "Conflict",
    "DeadlineExceeded",
    "Forbidden",
    "IdempotencyConflict",
    "IntegrityError",
    "InvalidInput",
    "InvalidModel",
    "InvalidReport",
    "InvalidTarget",
    "InvalidTrace",
    "InvalidTransition",
    "JobFailed",
    "MeasurementFailed",
    "NoDevice",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PitchpipeError",
    "SchemaMismatch",
    "StaleLease",
    "StepDied",
    "StepFailed",
    "StepTimeout",
    "TooLarge",
    "Unauthorized",
    "Unreachable",
    "UnsupportedOperator",
    "UnsupportedShape",
    "WrongResult",
    "from_problem",
]


class PitchpipeError(Exception):
    """Root of the tree. `status` is the HTTP status, `exit_code` the CLI's, `code` the problem type on the wire."""

    status: int = 500
    exit_code: int = 1
    title: str = "Pitchpipe failed"

    def __init__(self, detail: str = "", *, retry_after_secs: float | None = None) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.retry_after_secs = retry_after_secs

    @property
    def code(self) -> str:
        """Kebab-case class name, the last part of the problem's `type` URI."""
        return "".join(f"-{c.lower()}" if c.isupper() else c for c in type(self).__name__).lstrip("-")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.detail, self.retry_after_secs))


def _rebuild(kind: type[PitchpipeError], detail: str, retry_after_secs: float | None) -> PitchpipeError:
    return kind(detail, retry_after_secs=retry_after_secs)


class InvalidInput(PitchpipeError):
    status, exit_code, title = 400, 2, "The input is not valid"


class InvalidModel(InvalidInput):
    title = "The model cannot be read"


class UnsupportedOperator(InvalidModel):
    title = "The model uses an operator that is not supported"


class UnsupportedShape(InvalidModel):
    title = "The model has a shape that is not supported"


class InvalidTarget(InvalidInput):
    title = "The target is not valid"


class InvalidTrace(InvalidInput):
    title = "The trace is not valid"


class InvalidReport(InvalidInput):
    title = "The report is not valid"


class TooLarge(InvalidInput):
    status, title = 413, "The body is over the size cap"


class Unauthorized(PitchpipeError):
    status, exit_code, title = 401, 4, "A valid token is needed"


class Forbidden(PitchpipeError):
    status, exit_code, title = 403, 4, "The token's scope does not allow this"


class NotFound(PitchpipeError):
    status, exit_code, title = 404, 3, "Not found"


class Conflict(PitchpipeError):
    status, title = 409, "The request conflicts with the present state"


class StaleLease(Conflict):
    title = "The lease is no longer held"


class IdempotencyConflict(Conflict):
    title = "The same key was used with another body"


class InvalidTransition(Conflict):
    title = "The state does not allow this"


class NoDevice(Conflict):
    title = "No device serves this target"


class Overloaded(PitchpipeError):
    status, exit_code, title = 503, 5, "The service is overloaded"


class Unreachable(PitchpipeError):
    status, exit_code, title = 503, 5, "The service cannot be reached"


class DeadlineExceeded(PitchpipeError):
    status, exit_code, title = 504, 124, "The deadline passed"


class StepTimeout(DeadlineExceeded):
    title = "A step took longer than it may"


class SchemaMismatch(PitchpipeError):
    status, title = 503, "The database's schema is not this version's"


class JobFailed(PitchpipeError):
    title = "The job failed"


class StepFailed(PitchpipeError):
    title = "A step failed"


class IntegrityError(PitchpipeError):
    title = "Stored bytes do not match their digest"


class NotReady(PitchpipeError):
    status, title = 503, "The tuned model is not ready"


class ArtifactRefused(PitchpipeError):
    title = "The compiled model did not pass its proof run"


class WrongResult(PitchpipeError):
    title = "The compiled model does not compute what its framework computes"


class MeasurementFailed(PitchpipeError):
    title = "The measurement failed"


class StepDied(MeasurementFailed):
    title = "A step ended without an answer"


def _tree(root: type[PitchpipeError]) -> dict[str, type[PitchpipeError]]:
    found = {root("").code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


def from_problem(status: int, code: str, detail: str, retry_after_secs: float | None = None) -> PitchpipeError:
    """The error a problem+json document stands for; an unknown `code` gives the nearest class by HTTP status."""
    kinds = _tree(PitchpipeError)
    by_status = {400: InvalidInput, 401: Unauthorized, 403: Forbidden, 404: NotFound, 409: Conflict, 413: TooLarge}
    by_status |= {422: InvalidInput, 429: Overloaded, 503: Overloaded, 504: DeadlineExceeded}
    kind = kinds.get(code) or by_status.get(status, InvalidInput if 400 <= status < 500 else PitchpipeError)
    return kind(detail, retry_after_secs=retry_after_secs)
