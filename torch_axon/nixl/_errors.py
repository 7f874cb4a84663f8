"""The exceptions of NIXL's bindings."""

from __future__ import annotations

from concurrent.futures import CancelledError

from torch_axon.runtime import AccessDenied


class Failure(Exception):
    """What NIXL raises. Its text begins with the status, which clients look for."""

    status = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(f"{self.status}: {text}" if text else self.status)
        self.text = text

    def again(self) -> Failure:
        """Returns a copy, to be raised: tracebacks of one that is raised again and again would grow."""
        return type(self)(self.text)


class nixlNotPostedError(Failure):
    status = "NIXL_ERR_NOT_POSTED"


class nixlInvalidParamError(Failure):
    status = "NIXL_ERR_INVALID_PARAM"


class nixlBackendError(Failure):
    status = "NIXL_ERR_BACKEND"


class nixlNotFoundError(Failure):
    status = "NIXL_ERR_NOT_FOUND"


class nixlMismatchError(Failure):
    status = "NIXL_ERR_MISMATCH"


class nixlNotAllowedError(Failure):
    status = "NIXL_ERR_NOT_ALLOWED"


class nixlRepostActiveError(Failure):
    status = "NIXL_ERR_REPOST_ACTIVE"


class nixlUnknownError(Failure):
    status = "NIXL_ERR_UNKNOWN"


class nixlNotSupportedError(Failure):
    status = "NIXL_ERR_NOT_SUPPORTED"


class nixlRemoteDisconnectError(Failure):
    status = "NIXL_ERR_REMOTE_DISCONNECT"


class nixlCancelledError(Failure):
    status = "NIXL_ERR_CANCELED"


class nixlNoTelemetryError(Failure):
    status = "NIXL_ERR_NO_TELEMETRY"


def as_nixl(error: BaseException) -> Failure:
    """Returns NIXL's exception for one of the engine's."""
    text = str(error)
    if isinstance(error, AccessDenied):
        return nixlNotAllowedError(text)
    if isinstance(error, ConnectionError):
        return nixlRemoteDisconnectError(text)
    if isinstance(error, CancelledError):
        return nixlCancelledError(text)
    if isinstance(error, ValueError):
        return nixlInvalidParamError(text)
    return nixlBackendError(text)
