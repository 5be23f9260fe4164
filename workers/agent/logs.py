"""What the worker's log says of events."""

from __future__ import annotations

import structlog

from workers.agent import events

log = structlog.get_logger("worker")


def log_event(event: events.Event) -> None:
    """Writes the line of an event that an operator wants to know of; nothing of others."""
    match event:
        case events.Registered(worker=worker):
            log.info("registered", worker=worker)
        case events.Granted(grant=grant):
            log.info(
                "lease granted",
                lease=grant.lease,
                fence=grant.fence,
                purpose=grant.purpose.value,
                workload=grant.workload[:16],
                candidates=len(grant.candidates),
            )
        case events.Measured(lease=lease, result=result):
            detail = {"secs": result.secs} if result.outcome == "timed" else {"failure": result.kind.value}
            log.debug("measured", lease=lease, candidate=result.candidate[:16], **detail)
        case events.Reported(lease=lease, final=True):
            log.info("lease reported", lease=lease)
        case events.Stale(lease=lease):
            log.warning("lease lost", lease=lease)
        case events.Rejected(lease=lease, detail=text):
            log.error("report rejected", lease=lease, detail=text)
        case events.Faulted(lease=lease, detail=text):
            log.error("batch failed", lease=lease, detail=text)
        case events.Refused(detail=text) | events.Broken(detail=text):
            log.error("ending", reason=text)
        case events.Forgotten():
            log.warning("the service forgot this worker; registering again")
        case events.Signalled():
            log.info("told to stop")
        case _:
            pass
