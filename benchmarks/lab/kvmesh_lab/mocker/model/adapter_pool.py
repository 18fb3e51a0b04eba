"""The LoRA adapters of a simulated engine: some are held ready, others must be loaded first."""

from collections import Counter


class AdapterPool:
    """Slots for adapters, least recently used first out, as vLLM's `--max-loras` has them.

    `slots` 0: as many as there are, without loading. Loads take `load_s` each, of the step that
    begins a request; a request waits while all slots are in use by others.
    Source: vLLM `v1/worker/lora_model_runner_mixin.py`, `v1/core/sched/scheduler.py` (0.32).
    """

    def __init__(self, slots: int, load_s: float) -> None:
        self.slots = slots
        self.running: Counter[str] = Counter()
        self.loads = 0
        self._load_s = load_s
        self._held: dict[str, None] = {}
        self._loading_s = 0.0

    def has_room(self, name: str | None) -> bool:
        """Return whether a request for the adapter, None for none, may begin now."""
        if not self.slots or name is None:
            return True
        return name in self.running or len(self.running) < self.slots

    def enter(self, name: str | None) -> None:
        """Note that a request for it begins: load it unless it is held."""
        if not self.slots or name is None:
            return
        self.running[name] += 1
        if name not in self._held:
            self._loading_s += self._load_s
            self.loads += 1
        self._held.pop(name, None)
        self._held[name] = None
        if len(self._held) > self.slots:
            del self._held[next(one for one in self._held if one not in self.running)]

    def leave(self, name: str | None) -> None:
        """Note that a request for it is no longer at work."""
        if not self.slots or name is None:
            return
        self.running[name] -= 1
        if not self.running[name]:
            del self.running[name]

    def take_loading_s(self) -> float:
        """Return how long the loads since the last step take."""
        loading_s, self._loading_s = self._loading_s, 0.0
        return loading_s
