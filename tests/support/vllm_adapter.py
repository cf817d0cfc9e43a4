"""This project's clients where vLLM's LLMEngine and AsyncLLM look for their own.

Runs in vLLM's environment with this project's packages on the path. `installed` puts factories in
the places from which both engines take their client; what they get is our client, with vLLM's
message types turned into ours and back by the two encoders: as bytes, as on the wire. Control
calls need no turning and go through as they are.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from vllm.lora.request import LoRARequest as VllmLoRARequest
from vllm.v1.engine import EngineCoreOutputs as VllmOutputs
from vllm.v1.engine import EngineCoreRequest as VllmRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.core_client import EngineCoreClient as VllmClient
from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError
from vllm.v1.serial_utils import MsgpackDecoder as VllmDecoder
from vllm.v1.serial_utils import MsgpackEncoder as VllmEncoder

from enginecore_client import AsyncMPClient, EngineDeadError, InprocClient, SyncMPClient
from enginecore_wire.codec import MsgpackDecoder, MsgpackEncoder
from enginecore_wire.outputs import EngineCoreOutputs
from enginecore_wire.problems import RequestLimits
from enginecore_wire.requests import EngineCoreRequest, LoRARequest

Client = TypeVar("Client", SyncMPClient, AsyncMPClient, InprocClient)


class Translator:
    """Turns messages of one side into the other's."""

    def __init__(self) -> None:
        self._vllm_encoder = VllmEncoder()
        self._vllm_requests = VllmDecoder(VllmRequest)
        self._vllm_outputs = VllmDecoder(VllmOutputs)
        self._encoder = MsgpackEncoder()
        self._requests = MsgpackDecoder(EngineCoreRequest)
        self._outputs = MsgpackDecoder(EngineCoreOutputs)

    def request(self, request: VllmRequest) -> EngineCoreRequest:
        """Return vLLM's request as ours."""
        body, *aux = self._vllm_encoder.encode(request)
        return self._requests.decode(body, aux)

    def vllm_request(self, request: EngineCoreRequest) -> VllmRequest:
        """Return our request as vLLM's."""
        return self._vllm_requests.decode(self._encoder.encode(request))

    def outputs(self, outputs: VllmOutputs) -> EngineCoreOutputs:
        """Return vLLM's outputs as ours."""
        body, *aux = self._vllm_encoder.encode(outputs)
        return self._outputs.decode(body, aux)

    def vllm_outputs(self, outputs: EngineCoreOutputs) -> VllmOutputs:
        """Return our outputs as vLLM's."""
        return self._vllm_outputs.decode(self._encoder.encode(outputs))


class _Adapter(Generic[Client]):
    """What both kinds have in common: whatever is not here is our client's own."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._translator = Translator()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class BlockingAdapter(_Adapter[Client]):
    """SyncMPClient or InprocClient for LLMEngine."""

    def add_request(self, request: VllmRequest) -> None:
        self.client.add_request(self._translator.request(request))

    def get_output(self) -> VllmOutputs:
        try:
            return self._translator.vllm_outputs(self.client.get_output())
        except EngineDeadError as error:
            raise VllmDeadError from error

    def add_lora(self, request: VllmLoRARequest) -> bool:
        return self.client.add_lora(lora_of(request))


class AwaitedAdapter(_Adapter[AsyncMPClient]):
    """AsyncMPClient for AsyncLLM."""

    async def add_request_async(self, request: VllmRequest) -> None:
        await self.client.add_request_async(self._translator.request(request))

    async def get_output_async(self) -> VllmOutputs:
        try:
            return self._translator.vllm_outputs(await self.client.get_output_async())
        except EngineDeadError as error:
            raise VllmDeadError from error

    def add_lora_async(self, request: VllmLoRARequest) -> Awaitable[bool]:
        return self.client.add_lora_async(lora_of(request))


class VllmCore:
    """vLLM's EngineCore as an engine that InprocClient can hold (EngineLike)."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._translator = Translator()
        model = core.vllm_config.model_config
        self.limits = RequestLimits(
            vocab_size=model.get_vocab_size(), max_model_len=model.max_model_len
        )

    @property
    def model_executor(self) -> Any:
        """Return what LLMEngine reaches for in an engine of its own process."""
        return self.core.model_executor

    def add_request(self, request: EngineCoreRequest) -> None:
        found, wave = self.core.preprocess_add_request(self._translator.vllm_request(request))
        self.core.add_request(found, wave)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self.core.abort_requests(list(request_ids))

    def step(self) -> dict[int, EngineCoreOutputs]:
        outputs, executed = self.core.step_fn()
        self.core.post_step(model_executed=executed)
        return {client: self._translator.outputs(each) for client, each in (outputs or {}).items()}

    def has_work(self) -> bool:
        return bool(self.core.scheduler.has_requests())

    def call(self, method: str, args: Sequence[Any]) -> Any:
        return getattr(self.core, method)(*args)

    def shutdown(self) -> None:
        self.core.shutdown()


@contextmanager
def installed(
    blocking: Callable[..., BlockingAdapter[Any]], awaited: Callable[..., AwaitedAdapter]
) -> Iterator[None]:
    """Have LLMEngine take its client from `blocking`, and AsyncLLM from `awaited`.

    Both are called with what vLLM calls its own factories with.
    """
    own = {name: vars(VllmClient)[name] for name in ("make_client", "make_async_mp_client")}
    VllmClient.make_client = staticmethod(blocking)
    VllmClient.make_async_mp_client = staticmethod(awaited)
    try:
        yield
    finally:
        for name, factory in own.items():
            setattr(VllmClient, name, factory)


def lora_of(request: VllmLoRARequest) -> LoRARequest:
    """Return vLLM's description of an adapter as ours."""
    return LoRARequest(request.lora_name, request.lora_int_id, request.lora_path)
