"""Memory in use on the GPU, by the NVIDIA driver's count; torch's allocator knows only its part.

Reads NVML, or `nvidia-smi` where Python has no NVML. Without a GPU it reads the resident memory of
this process and its children instead.
"""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Callable

import psutil

from unslothrl.system.variables import PROCESS

MB = 2**20
EVERY_S = 0.1

Sample = tuple[int, dict[int, int]]  # MB in use; of that, by process, where the driver says so


def reader() -> tuple[str, Callable[[], Sample]]:
    """-> (what is read, how to read it once)."""
    with contextlib.suppress(Exception):  # no package, no library, no card: each its own exception
        return "the driver, by NVML", nvml()
    if shutil.which("nvidia-smi"):
        return "the driver, by nvidia-smi", nvidia_smi
    return "resident memory of the processes", resident


def nvml() -> Callable[[], Sample]:
    import pynvml

    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetHandleByIndex(0)

    def read() -> Sample:
        used = pynvml.nvmlDeviceGetMemoryInfo(card).used // MB
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        by_process = {each.pid: each.usedGpuMemory // MB for each in running if each.usedGpuMemory}
        return used, by_process

    read()
    return read


def gpus_of_workers() -> dict[str, str]:
    """Of each actor and learner that the driver sees, on which GPU: enough of its id to tell two
    apart, too little to know it again."""
    import pynvml

    found = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        for running in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
            with contextlib.suppress(psutil.Error):
                name = psutil.Process(running.pid).environ().get(PROCESS, "main process")
                found[name] = pynvml.nvmlDeviceGetUUID(gpu)[:8]
    return found


def nvidia_smi() -> Sample:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return int(answer.stdout.split()[0]), {}


def resident() -> Sample:
    here = psutil.Process()
    by_process = {}
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            by_process[process.pid] = process.memory_info().rss // MB
    return sum(by_process.values()), by_process


class Watcher:
    """The peak in MB above the use at its creation, read ten times a second in a thread."""

    def __init__(self) -> None:
        self.source, self.read = reader()
        self.before, _ = self.read()
        self.most, self.by_process = self.before, dict[int, int]()
        self.gpus: dict[str, str] = {}  # a worker's name -> the first characters of its GPU's id
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> "Watcher":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()
        self._sample()

    def _run(self) -> None:
        while not self.stopped.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        with contextlib.suppress(Exception):  # one missed reading is no reason to stop
            used, by_process = self.read()
            self.most = max(self.most, used)
            for pid, mb in by_process.items():
                self.by_process[pid] = max(mb, self.by_process.get(pid, 0))
            self.gpus |= gpus_of_workers()

    @property
    def peak_mb(self) -> int:
        return self.most - self.before

    def figures(self) -> dict:
        largest = sorted(self.by_process.values(), reverse=True)[:8]
        return {
            "peak_mb": self.peak_mb,
            "before_mb": self.before,
            "largest_processes_mb": largest,
            "memory_read_from": self.source,
            "GPU of each process": self.gpus,
        }
