"""The two halves of a pretend KV transfer, which notice a handshake that would fail for real.

The prefill half names the prompt by a digest; the decode half accepts only what a prefill of the
very same prompt, under the same request id, offered, and each offer once. Where both have a store
in common (`shared`) nothing is named; what a side channel has checked is `aside`.
Source: vllm NixlConnector and NixlPushConnector `request_finished`, `update_state_after_alloc`,
`kv_transfer_params` (0.32).
"""

from array import array
from collections.abc import Mapping
from typing import Literal

from xxhash import xxh3_64_hexdigest

from kvmesh.errors import RequestError

Connector = Literal["nixl", "nixl-push", "shared", "aside"]
TransferParams = Mapping[str, object]


class MockTransfer:
    """One engine's half. `engine_id` is its own; `host` and `port` are made up."""

    def __init__(
        self,
        role: Literal["both", "prefill", "decode"],
        engine_id: str,
        connector: Connector = "nixl",
    ) -> None:
        self._role = role
        self._connector = connector
        self._engine_id = engine_id
        self._used: set[str] = set()

    def begin(
        self,
        params: TransferParams | None,
        tokens: "array[int]",
        request_id: str,
        *,
        max_tokens: int | None,
        stream: bool,
        sequences: int = 1,
    ) -> TransferParams | None:
        """Check a request of so many prompts times answers on its way in; return what its answer
        says of the transfer.

        Raises `RequestError` for anything that would not work between real engines, of status 500
        where that ends a real one.
        """
        if self._connector == "aside":
            return None
        if self._connector == "shared":
            if params is not None:
                raise _refused("with a shared store a request names no transfer")
            if self._role == "prefill" and (max_tokens != 1 or stream):
                raise _refused(f"a prefill has one token, no stream, not {max_tokens} and {stream}")
            return None
        if self._role == "decode" and params is not None and sequences > 1:
            raise _refused("AssertionError: num_decode_blocks <= len(prefill_group)", status=500)
        if self._role == "prefill":
            return self._offer(params, tokens, request_id, max_tokens=max_tokens, stream=stream)
        if params is not None:
            if self._role != "decode":
                raise _refused("this engine transfers no KV cache")
            self._accept(params, tokens, request_id)
        return None

    def _offer(
        self,
        params: TransferParams | None,
        tokens: "array[int]",
        request_id: str,
        *,
        max_tokens: int | None,
        stream: bool,
    ) -> TransferParams:
        if params is None or params.get("do_remote_decode") is not True:
            raise _refused("a prefill worker needs do_remote_decode")
        if params.get("do_remote_prefill") is not False or params.get("remote_block_ids"):
            raise _refused("a prefill worker fetches nothing")
        if max_tokens != 1 or stream:
            raise _refused(f"a prefill has one token, no stream, not {max_tokens} and {stream}")
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [_digest(tokens)],
            "remote_engine_id": self._engine_id,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "transfer_mode": "push" if self._connector == "nixl-push" else "pull",
        }

    def _accept(self, params: TransferParams, tokens: "array[int]", request_id: str) -> None:
        if params.get("do_remote_prefill") is not True or params.get("do_remote_decode"):
            raise _refused("a decode worker needs do_remote_prefill")
        blocks, engine = params.get("remote_block_ids"), params.get("remote_engine_id")
        if not engine or blocks != [_digest(tokens)]:
            raise _refused(f"blocks {blocks} of engine {engine} are not of this prompt")
        if params.get("remote_request_id") != request_id:
            raise _refused(f"request {request_id} is not {params.get('remote_request_id')}")
        if self._connector == "nixl-push" and params.get("tp_size") is None:
            raise _refused("KeyError: 'tp_size'", status=500)
        offer = f"{engine}/{request_id}"
        if offer in self._used:
            raise _refused(f"the blocks of {offer} were fetched and freed already")
        self._used.add(offer)


def _digest(tokens: "array[int]") -> str:
    return xxh3_64_hexdigest(tokens.tobytes())


def _refused(text: str, status: int = 400) -> RequestError:
    return RequestError(text, param="kv_transfer_params", status=status)
