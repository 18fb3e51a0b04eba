"""Logs: structlog, one JSON object a line for machines, colours for people."""

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from kvmesh.actors.kernel import Log

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(level: str, log_format: str, **fields: str) -> None:
    """Send all logs of this process to standard error; `fields` are put on every line.

    `log_format` is "console", "json" or "auto" (console on a terminal).
    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Processor = (
        structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**fields)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)


def log_to_stdlib() -> None:
    """Send what is logged to the standard library's logger `kvmesh`, where a program of somebody
    else's has its logs, unless that program has configured structlog itself.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=("event",)),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=lambda *_: logging.getLogger("kvmesh"),
        cache_logger_on_first_use=False,
    )


def get_logger(**fields: Any) -> FilteringBoundLogger:  # noqa: ANN401  any value renders
    """Return a logger with `fields` bound."""
    logger: FilteringBoundLogger = structlog.get_logger(**fields)
    return logger


def actor_log() -> Callable[[Log], None]:
    """Return what writes the lines actors wish for."""
    logger = get_logger()

    def write(line: Log) -> None:
        logger.log(LEVELS[line.level], line.event, **line.fields)

    return write
