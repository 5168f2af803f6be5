"""Log records as lines of JSON, one each, for collectors. Host: coordinator.__main__."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


class JsonLines(logging.Formatter):
    """`extra={"fields": {...}}` of a record becomes members of its object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # In ASCII: nothing that anybody takes for the end of a line, and half characters as well.
        return json.dumps(line, default=str)
