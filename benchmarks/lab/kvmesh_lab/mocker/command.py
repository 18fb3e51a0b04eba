"""`kvmesh mocker`: a pretend vLLM: HTTP, paged KV cache, KV events; no model, no GPU."""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from kvmesh.app.process.listening import naming
from kvmesh.app.process.running import Stop, run
from kvmesh.app.prompts.tokenizer import Tokenizer, load_tokenizer
from kvmesh.bounds import is_name, shown
from kvmesh.errors import ConfigError
from kvmesh.observe import configure_logging, get_logger
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.wire.sockets import ANY_HOST
from kvmesh_lab.mocker.api import MockerApi
from kvmesh_lab.mocker.engine import EngineRunner
from kvmesh_lab.mocker.faults import FaultDesk
from kvmesh_lab.mocker.generation import Engine
from kvmesh_lab.mocker.metrics import EngineMetrics
from kvmesh_lab.mocker.model.answer import Vocabulary
from kvmesh_lab.mocker.model.faults import FaultOptions, check_faults
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.request import Step
from kvmesh_lab.mocker.model.timing import parse_profile
from kvmesh_lab.mocker.model.transfer import Connector, MockTransfer
from kvmesh_lab.mocker.publisher import EventPublisher, ZmqPublisherOptions
from kvmesh_lab.mocker.service import GenerationService, ServedModels
from kvmesh_lab.mocker.settings import KvConnector, MockerSettings
from kvmesh_lab.mocker.sglang_meeting import MeetingPlace
from kvmesh_lab.mocker.side_channel import SideChannel

KEEP_ALIVE_S: Final = 5.0
"""vLLM closes idle connections after so long (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)."""
DRAIN_S: Final = 2.0
EVENT_PORTS: Final = (
    "--kv-events-port, --kv-replay-port and, of a second mocker, --http-port (0 takes a free one)"
)

_TRANSFERS: Final[Mapping[KvConnector, Connector]] = {
    "auto": "nixl",
    "nixl": "nixl",
    "nixl-push": "nixl-push",
    "mooncake": "aside",
    "p2p-nccl": "aside",
    "shared": "shared",
    "bootstrap": "nixl",
}


class MockerOptions(msgspec.Struct, frozen=True):
    """One pretend vLLM. The names are vLLM's and Dynamo's mocker's.

    Port 0 takes a free one. Rank r of `data_parallel_size` publishes on `kv_events_port` + r and
    replays on `replay_port` + r. `max_model_len` is cut to what the KV cache holds. `replay_hwm`
    makes the replay drop replies beyond so many waiting, as vLLM's does beyond 1,000.
    """

    model: str = "mock"
    aliases: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8100
    enable_kv_cache_events: bool = True
    kv_events_port: int = 5557
    replay_port: int = 5657
    kv_events_topic: str = ""
    buffer_steps: int = 10_000
    replay_hwm: int = 0
    block_size: int = 16
    num_gpu_blocks_override: int = 16384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    enable_prefix_caching: bool = True
    sliding_window: int = 0
    window_groups: int = 1
    mamba_groups: int = 0
    data_parallel_size: int = 1
    timing_profile: str = "dynamo"
    speedup_ratio: float = 1.0
    startup_time_s: float = 0.0
    tokenizer: str | None = None
    lora_modules: tuple[str, ...] = ()
    max_loras: int = 0
    lora_load_ms: float = 100.0
    role: Literal["both", "prefill", "decode"] = "both"
    bootstrap_port: int = 0
    kv_connector: KvConnector = "auto"
    faults: FaultOptions = FaultOptions()

    def engine(self) -> EngineOptions:
        """Return each rank's engine. Raises `ConfigError`."""
        return EngineOptions(
            block_size=self.block_size,
            num_gpu_blocks=self.num_gpu_blocks_override,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            sliding_window=self.sliding_window,
            window_groups=self.window_groups,
            mamba_groups=self.mamba_groups,
            max_loras=self.max_loras,
            lora_load_ms=self.lora_load_ms,
            timing=parse_profile(self.timing_profile),
            speedup_ratio=self.speedup_ratio,
        )


class Mocker:
    """A pretend vLLM to be embedded: `start`, use it at `url`, `stop`."""

    def __init__(self, options: MockerOptions, tokenizer: Tokenizer | None = None) -> None:
        """Check the options. Raises `ConfigError`."""
        self.options = options
        self.ranks: dict[int, EngineRunner] = {}
        self._engine = options.engine()
        self._tokenizer = tokenizer or load_tokenizer(options.tokenizer)
        self._server: HttpServer | None = None
        self._service: GenerationService | None = None
        self._meeting: MeetingPlace | SideChannel | None = None
        self._engine_id = secrets.token_hex(8)
        check_faults(options.faults)
        if options.data_parallel_size < 1:
            raise ConfigError(f"data_parallel_size is {options.data_parallel_size}: at least 1")
        names = (options.model, *options.aliases, *options.lora_modules)
        for name in options.lora_modules:
            if not is_name(name) or names.count(name) > 1:
                raise ConfigError(
                    f"--lora-modules {shown(name)}: give each adapter a name of its own"
                )
        distance = abs(options.kv_events_port - options.replay_port)
        fixed = options.kv_events_port > 0 and options.replay_port > 0
        if options.enable_kv_cache_events and fixed and distance < options.data_parallel_size:
            raise ConfigError(
                f"kv_events_port {options.kv_events_port} and replay_port {options.replay_port} "
                f"overlap with {options.data_parallel_size} ranks: each rank adds its number"
            )

    @property
    def url(self) -> str:
        """Return the base URL, without /v1; only while it runs."""
        assert self._server is not None
        host = "127.0.0.1" if self.options.host in ANY_HOST else self.options.host
        return f"http://{host}:{self._server.port}"

    def kv_events_endpoint(self, rank: int = 0) -> str:
        """Return where rank `rank` publishes its events; "" with events off."""
        publisher = self.ranks[rank].publisher
        return publisher.endpoint if publisher else ""

    def replay_endpoint(self, rank: int = 0) -> str:
        """Return where rank `rank` replays its events; "" with events off."""
        publisher = self.ranks[rank].publisher
        return (publisher.replay_endpoint or "") if publisher else ""

    async def start(self) -> None:
        """Start all ranks and listen, after the start-up time. Raises `TransportError`."""
        options = self.options
        await asyncio.sleep(options.startup_time_s)
        try:
            for rank in range(options.data_parallel_size):
                with naming(EVENT_PORTS, "--http-host"):
                    publisher = self._publisher(rank) if options.enable_kv_cache_events else None
                self.ranks[rank] = EngineRunner(rank, self._engine, publisher, self._on_step)
            self._meeting = self._make_meeting()
            if self._meeting is not None:
                await self._meeting.open()
            api = self._make_api()
            self._server = HttpServer(api.handle, limits=HttpLimits(idle_timeout_s=KEEP_ALIVE_S))
            with naming("--http-port", "--http-host"):
                await self._server.start(options.host, options.port)
        except BaseException:
            await self.stop()
            raise

    async def stop(self, grace_s: float = 0.0) -> None:
        """Let open answers finish for `grace_s` seconds, then close all; safe to call twice."""
        if self._server is not None:
            await self._server.drain(grace_s)
        if self._service is not None:
            await self._service.close()
        if self._meeting is not None:
            await self._meeting.close()
        for runner in self.ranks.values():
            runner.close()

    def _make_api(self) -> MockerApi:
        options, tokenizer = self.options, self._tokenizer
        length = min(options.max_model_len, self.ranks[0].capacity_tokens)
        models = ServedModels(options.model, length, options.lora_modules, options.aliases)
        vocabulary = Vocabulary(
            lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.decode
        )
        metrics = EngineMetrics(models.base, length, self.ranks, self._cache_config())
        engine = Engine(options.block_size, length, vocabulary)
        meets = self._meeting is not None
        transfer = MockTransfer(
            "both" if meets else options.role, self._engine_id, _TRANSFERS[options.kv_connector]
        )
        self._service = GenerationService(models, engine, tokenizer, self.ranks, metrics, transfer)
        self._service.meeting = self._meeting
        faults = FaultDesk(options.faults, self.ranks.values())
        return MockerApi(self._service, tokenizer, self.ranks, metrics, self._sources(), faults)

    def _make_meeting(self) -> MeetingPlace | SideChannel | None:
        """Return where the two halves of a request meet; None for those that do not."""
        options = self.options
        role, way = options.role, options.kv_connector
        if role == "both" or (way == "auto" and not options.bootstrap_port):
            return None
        address = options.host, options.bootstrap_port
        if way in ("mooncake", "p2p-nccl"):
            return SideChannel(way, role, address, self._engine_id)
        if way in {"auto", "bootstrap"}:
            return MeetingPlace(*address, listens=role == "prefill")
        return None

    def _on_step(self, rank: int, step: Step, seconds: float) -> None:
        assert self._service is not None
        self._service.on_step(rank, step, seconds)

    def _publisher(self, rank: int) -> EventPublisher:
        options = self.options
        return EventPublisher(
            ZmqPublisherOptions(
                endpoint=self._endpoint(options.kv_events_port, rank),
                replay_endpoint=self._endpoint(options.replay_port, rank),
                topic=options.kv_events_topic,
                buffer_steps=options.buffer_steps,
                replay_hwm=options.replay_hwm,
            )
        )

    def _endpoint(self, port: int, rank: int) -> str:
        host = "*" if self.options.host in ANY_HOST else self.options.host
        return f"tcp://{host}:{port + rank if port else '*'}"

    def _sources(self) -> dict[str, object]:
        """Return what vLLM says of each rank's publisher."""
        return {
            str(rank): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": self._announced(runner.publisher.endpoint),
                "replay_endpoint": self._announced(runner.publisher.replay_endpoint or ""),
                "buffer_steps": self.options.buffer_steps,
                "hwm": ZmqPublisherOptions().hwm,
                "max_queue_size": 100_000,
                "topic": self.options.kv_events_topic,
            }
            for rank, runner in self.ranks.items()
            if runner.publisher is not None
        }

    def _announced(self, endpoint: str) -> str:
        """Return the endpoint as it was configured: a wildcard stays one."""
        return endpoint.replace("//0.0.0.0:", "//*:")

    def _cache_config(self) -> dict[str, str]:
        """Return the labels of `vllm:cache_config_info`."""
        options = self.options
        values: dict[str, object] = {
            "block_size": options.block_size,
            "cache_dtype": "auto",
            "enable_prefix_caching": options.enable_prefix_caching,
            "gpu_memory_utilization": 0.92,
            "kv_cache_size_tokens": options.block_size * options.num_gpu_blocks_override,
            "num_cpu_blocks": None,
            "num_gpu_blocks": options.num_gpu_blocks_override,
            "num_gpu_blocks_override": options.num_gpu_blocks_override,
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": None,
        }
        return {name: str(value) for name, value in values.items()}


async def run_mocker(options: MockerOptions, stop: Stop | None = None) -> None:
    """Serve until `stop` is requested (None: until cancelled), then end in good order."""
    mocker = Mocker(options)
    log = get_logger(model=options.model)
    await mocker.start()
    log.info(
        "mocker serves",
        url=mocker.url,
        kv_events=mocker.kv_events_endpoint(),
        replay=mocker.replay_endpoint(),
        ranks=options.data_parallel_size,
    )
    try:
        await (stop or Stop()).wait()
        await mocker.stop(DRAIN_S)
    finally:
        await mocker.stop()


def options_from(settings: MockerSettings) -> MockerOptions:
    """Return the options of the command's settings."""
    names = settings.served_model_name or (settings.model,)
    return MockerOptions(
        model=names[0],
        aliases=names[1:],
        host=settings.http_host,
        port=settings.http_port,
        kv_events_port=settings.kv_events_port,
        replay_port=settings.kv_replay_port,
        block_size=settings.kv_cache_block_size,
        num_gpu_blocks_override=settings.num_gpu_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        enable_prefix_caching=settings.enable_prefix_caching,
        sliding_window=settings.sliding_window,
        window_groups=settings.window_groups,
        mamba_groups=settings.mamba_groups,
        lora_modules=settings.lora_modules,
        max_loras=settings.max_loras,
        lora_load_ms=settings.lora_load_ms,
        data_parallel_size=settings.data_parallel_size,
        timing_profile=settings.timing_profile,
        speedup_ratio=settings.speedup_ratio,
        startup_time_s=settings.startup_time,
        tokenizer=str(settings.tokenizer) if settings.tokenizer else None,
        role=settings.role,
        bootstrap_port=settings.bootstrap_port,
        kv_connector=settings.kv_connector,
        faults=FaultOptions(
            fail=settings.fail,
            flap=settings.flap,
            fail_health=settings.fail_health,
            fail_seed=settings.fail_seed,
            slowdown=settings.slowdown,
            first_pause_s=settings.first_pause_s,
            stall=settings.stall,
            hang_health=settings.hang_health,
        ),
    )


def command(settings: MockerSettings) -> None:
    """Run a simulated engine: real HTTP, KV cache and events, no GPU."""
    configure_logging(settings.log.log_level, settings.log.log_format, role="mocker")
    options = options_from(settings)

    async def main(stop: Stop) -> None:
        await run_mocker(options, stop)

    run(main)
