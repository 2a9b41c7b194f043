"""A policy version as it travels: the adapter alone."""

import hashlib
import pickle
from dataclasses import dataclass
from typing import Any, SupportsIndex

import xxhash

from unslothrl.errors import AdapterDamaged


@dataclass(frozen=True, slots=True)
class Adapter:
    """An immutable policy version: the LoRA in PEFT's format, bfloat16, as it travels.

    Pickled with protocol 5, as Ray does, the weights are a buffer of their own: Ray writes it into
    its object store once, a node fetches it once, and every process there reads it in place.
    """

    version: int
    weights: memoryview  # bytes that nobody can change: the content of adapter_model.safetensors
    config: str  # the content of adapter_config.json
    checksum: str  # of `weights`: XXH3 of 128 bits, in hexadecimal

    @classmethod
    def of(cls, version: int, weights: bytes | memoryview, config: str) -> "Adapter":
        return cls.read(version, weights, config, xxhash.xxh3_128_hexdigest(weights))

    @classmethod
    def read(
        cls, version: int, weights: bytes | memoryview, config: str, checksum: str
    ) -> "Adapter":
        """One that was published elsewhere."""
        return cls(version, memoryview(weights).cast("B").toreadonly(), config, checksum)

    @property
    def sha256(self) -> str:
        """Of `weights`; it takes ten times as long as `checksum`."""
        return hashlib.sha256(self.weights).hexdigest()

    def verify(self) -> None:
        """Raises AdapterDamaged if the weights are not those that were published."""
        if (found := xxhash.xxh3_128_hexdigest(self.weights)) != self.checksum:
            raise AdapterDamaged(
                f"adapter v{self.version} arrived damaged: its checksum is {found[:12]}, "
                f"it was published with {self.checksum[:12]}"
            )

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        apart = int(protocol) >= 5
        weights = pickle.PickleBuffer(self.weights) if apart else bytes(self.weights)
        return Adapter.read, (self.version, weights, self.config, self.checksum)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What it took to give an engine a policy version."""

    bytes: int  # of weights that arrived
    fetch_s: float  # until they were in this node's memory
    load_s: float  # until the engine had them
