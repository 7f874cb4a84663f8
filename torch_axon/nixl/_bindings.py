"""What NIXL's module `nixl._bindings` has."""

from __future__ import annotations

from torch_axon.nixl._agent import NIXL_INIT_AGENT as NIXL_INIT_AGENT
from torch_axon.nixl._agent import nixlAgent as nixlAgent
from torch_axon.nixl._agent_config import DEFAULT_COMM_PORT as DEFAULT_COMM_PORT
from torch_axon.nixl._agent_config import nixlAgentConfig as nixlAgentConfig
from torch_axon.nixl._enums import nixl_cost_t as nixl_cost_t
from torch_axon.nixl._enums import nixl_mem_t as nixl_mem_t
from torch_axon.nixl._enums import nixl_status_t as nixl_status_t
from torch_axon.nixl._enums import nixl_thread_sync_t as nixl_thread_sync_t
from torch_axon.nixl._enums import nixl_xfer_op_t as nixl_xfer_op_t
from torch_axon.nixl._errors import nixlBackendError as nixlBackendError
from torch_axon.nixl._errors import nixlCancelledError as nixlCancelledError
from torch_axon.nixl._errors import nixlInvalidParamError as nixlInvalidParamError
from torch_axon.nixl._errors import nixlMismatchError as nixlMismatchError
from torch_axon.nixl._errors import nixlNotAllowedError as nixlNotAllowedError
from torch_axon.nixl._errors import nixlNoTelemetryError as nixlNoTelemetryError
from torch_axon.nixl._errors import nixlNotFoundError as nixlNotFoundError
from torch_axon.nixl._errors import nixlNotPostedError as nixlNotPostedError
from torch_axon.nixl._errors import nixlNotSupportedError as nixlNotSupportedError
from torch_axon.nixl._errors import nixlRemoteDisconnectError as nixlRemoteDisconnectError
from torch_axon.nixl._errors import nixlRepostActiveError as nixlRepostActiveError
from torch_axon.nixl._errors import nixlUnknownError as nixlUnknownError
from torch_axon.nixl._lists import nixlRegDList as nixlRegDList
from torch_axon.nixl._lists import nixlRemoteDList as nixlRemoteDList
from torch_axon.nixl._lists import nixlXferDList as nixlXferDList
from torch_axon.nixl._lists import unpickled as unpickled
from torch_axon.nixl._requests import nixlXferTelemetry as nixlXferTelemetry

HAVE_UCX_GPU_DEVICE_API = False

# As NIXL's bindings do, the module has the members of its enumerations.
DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG = nixl_mem_t
NIXL_READ, NIXL_WRITE = nixl_xfer_op_t
NIXL_IN_PROG = nixl_status_t.NIXL_IN_PROG
NIXL_SUCCESS = nixl_status_t.NIXL_SUCCESS
NIXL_ERR_NOT_POSTED = nixl_status_t.NIXL_ERR_NOT_POSTED
NIXL_ERR_INVALID_PARAM = nixl_status_t.NIXL_ERR_INVALID_PARAM
NIXL_ERR_BACKEND = nixl_status_t.NIXL_ERR_BACKEND
NIXL_ERR_NOT_FOUND = nixl_status_t.NIXL_ERR_NOT_FOUND
NIXL_ERR_MISMATCH = nixl_status_t.NIXL_ERR_MISMATCH
NIXL_ERR_NOT_ALLOWED = nixl_status_t.NIXL_ERR_NOT_ALLOWED
NIXL_ERR_REPOST_ACTIVE = nixl_status_t.NIXL_ERR_REPOST_ACTIVE
NIXL_ERR_UNKNOWN = nixl_status_t.NIXL_ERR_UNKNOWN
NIXL_ERR_NOT_SUPPORTED = nixl_status_t.NIXL_ERR_NOT_SUPPORTED
NIXL_COST_ANALYTICAL_BACKEND = nixl_cost_t.NIXL_COST_ANALYTICAL_BACKEND
NIXL_THREAD_SYNC_NONE = nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
NIXL_THREAD_SYNC_STRICT = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
NIXL_THREAD_SYNC_RW = nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
NIXL_THREAD_SYNC_DEFAULT = nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT
