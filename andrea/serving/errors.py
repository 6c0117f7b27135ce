"""Why a request is refused, as the OpenAI interface tells it."""

from __future__ import annotations

from typing import Any

from andrea.errors import AndreaError


class RequestError(AndreaError):
    """A request that cannot be served: an HTTP status, one line, and the field that is wrong."""

    def __init__(
        self, message: str, *, status: int = 400, field: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.field = field
        self.code = code

    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        if self.status == 429:
            kind = "rate_limit_error"
        else:
            kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.field, "code": self.code}
        return {"error": error}
