"""A program on a device: its code, its memory, and one CUDA graph of its launches.

Memory. One block holds what stays: weights that `run` reads as they were given, what `prepare` made of the others, constants
and scratch memory. Weights that only `prepare` reads are there while it runs.

Runs. The launches are recorded once, on a stream of our own, and instantiated as a graph, which is launched on the caller's
stream. Where inputs and outputs lie elsewhere than in the run before, the nodes that take them get new arguments: later
launches of the graph have them, those that are queued keep theirs. The driver runs launches of one instance one after
another. With a launch or two there is no graph: launching them costs no more.

A run that its caller captures into a graph of its own is queued launch by launch, and should be given scratch memory that
belongs to that graph: it may be replayed while another run uses ours.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pitchpipe.gpu.driver import Driver
from pitchpipe.gpu.launches import Code, Launches
from pitchpipe.gpu.program import ALIGNMENT, Place, Program

LEAST_NODES = 3
"""Launches from which on a graph pays."""
Replay = Callable[[int, int], float]
"""(number of a graph, runs in a row) -> the device's seconds of one of them."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A recorded graph and its instance; the node of each launch."""

    graph: int
    instance: int
    nodes: tuple[int, ...]


class Current:
    """A context manager that makes a CUDA context current, where it is not."""

    __slots__ = ("_context", "_driver", "_pushed")

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver, self._context, self._pushed = driver, context, False

    def __enter__(self) -> None:
        if self._driver.current() != self._context:
            self._driver.push(self._context)
            self._pushed = True

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            self._driver.pop()
            self._pushed = False


class LoadedProgram:
    """Thread-safe: calls take turns. Raises CudaError whenever the driver does."""

    def __init__(self, driver: Driver, program: Program, ordinal: int) -> None:
        self.program, self.ordinal, self.driver = program, ordinal, driver
        self.lock = threading.RLock()
        self.context = driver.primary_context(ordinal)
        self._graph: Graph | None = None
        self._closed = False
        self._caller = (*program.at(Place.INPUT), *program.at(Place.OUTPUT))
        self._prepare_alone = _touched(program, prepare=True) - _touched(program, prepare=False)
        with self.current():
            self.stream = driver.create_stream()
            self.done = driver.create_event()
            """Recorded after each run that is not captured."""
            self._arrived = driver.create_event()
            self._last_stream = self.stream
            self._code = Code(driver, program)
            kept = {*program.kept, *program.at(Place.RESIDENT), *program.at(Place.CONSTANT), *program.at(Place.SCRATCH)}
            places, self.resident_bytes = _laid_out(program, sorted(kept - self._prepare_alone))
            self._block = driver.allocate(self.resident_bytes)
            self.addresses = {at: self._block + offset for at, offset in places.items()}
            self._fill_constants()
        self._staging: dict[int, int] = {}
        self._pool = self._passing_pool = 0
        self._launches: Launches | None = None
        self._direct: Launches | None = None

    def current(self) -> Current:
        """A context manager in which the device's context is current in this thread."""
        return Current(self.driver, self.context)

    def _fill_constants(self) -> None:
        for at, data in zip(self.program.at(Place.CONSTANT), self.program.constants, strict=True):
            if at in self.addresses:
                self._upload(self.addresses[at], data)
        self.driver.synchronize(self.stream)

    def _upload(self, address: int, data: bytes) -> None:
        host = ctypes.c_char_p(data)
        self.driver.upload(address, ctypes.cast(host, ctypes.c_void_p).value or 0, len(data), self.stream)

    # -- weights

    @contextmanager
    def binding(self) -> Iterator[dict[int, int]]:
        """Addresses of all weights, to be written to on `stream`; on leaving, `prepare` is queued there. Runs that are
        queued read what was there before, later ones what is written, except those that somebody captures: whoever does
        waits for the device first, as `torch.cuda.graph` does."""
        program, driver = self.program, self.driver
        with self.lock, self.current():
            driver.wait_for(self.done, self.stream)
            alone = {*program.at(Place.WEIGHT), *self._prepare_alone} - set(self.addresses)
            places, size = _laid_out(program, sorted(alone))
            block = 0
            try:
                if places:
                    # Weights as they were given may be as large as all that stays: this pool keeps nothing.
                    self._passing_pool = self._passing_pool or driver.create_pool(self.ordinal, keeps=False)
                    block = driver.allocate_from(self._passing_pool, size, self.stream)
                addresses = self.addresses | {at: block + offset for at, offset in places.items()}
                for at, data in zip(program.at(Place.CONSTANT), program.constants, strict=True):
                    if at in places:
                        self._upload(addresses[at], data)
                yield {at: addresses[at] for at in program.at(Place.WEIGHT)}
                Launches(driver, program.prepare, self._code.functions, addresses).queue(self.stream)
                driver.record(self.done, self.stream)
                self._last_stream = self.stream
            finally:
                if block:
                    driver.free_on(block, self.stream)

    def synchronize(self) -> None:
        """Waits for what is queued on `stream`."""
        with self.current():
            self.driver.synchronize(self.stream)

    def hold_up(self, stream: int) -> None:
        """What is queued on the stream from now on waits for what was queued on `self.stream`. With the device's context
        current."""
        self.driver.record(self._arrived, self.stream)
        self.driver.wait_for(self._arrived, stream)

    def wait_for(self, stream: int) -> None:
        """What is queued on `self.stream` from now on waits for what was queued on the stream. With the device's context
        current."""
        self.driver.record(self._arrived, stream)
        self.driver.wait_for(self._arrived, self.stream)

    def take_over(self, other: LoadedProgram) -> None:
        """Copies the bound weights of the same program on another device."""
        with other.lock, other.current():
            other.driver.synchronize(other.stream)
        with self.lock, self.current():
            driver = self.driver
            driver.synchronize_event(self.done)  # as in `binding`
            driver.copy_peer(self._block, self.context, other._block, other.context, self.resident_bytes, self.stream)
            driver.synchronize(self.stream)

    # -- runs

    def run(self, addresses: Mapping[int, int], stream: int, *, graph: bool = True) -> None:
        """Queues one run on the stream. addresses: of every input and output.

        graph: False queues launch by launch.
        """
        with self.lock, self.current():
            self.queue(addresses, stream, graph=graph)

    def queue(self, addresses: Mapping[int, int], stream: int, *, graph: bool = True) -> None:
        """The same for who holds the lock, with the device's context current."""
        driver = self.driver
        if stream != self._last_stream:
            driver.wait_for(self.done, stream)
            self._last_stream = stream
        if graph and len(self.program.run) >= LEAST_NODES:
            self._run_graph(addresses, stream)
        else:
            direct = self._direct = self._direct or self._made(addresses)
            direct.place(addresses)
            direct.queue(stream)
        driver.record(self.done, stream)

    def run_captured(self, addresses: Mapping[int, int], scratch: Mapping[int, int], stream: int) -> None:
        """Queues one run on a stream that its caller captures, on scratch memory of the caller's graph."""
        with self.lock, self.current():
            Launches(
                self.driver, self.program.run, self._code.functions, {**self.addresses, **scratch, **addresses}
            ).queue(stream)

    @property
    def scratch(self) -> tuple[int, ...]:
        """Indices of the scratch buffers that a run uses."""
        used = _touched(self.program, prepare=False)
        return tuple(at for at in self.program.at(Place.SCRATCH) if at in used)

    def staging(self, at: int) -> int:
        """The address of memory of ours for an input or output, for arrays of the host."""
        if at not in self._staging:
            with self.current():
                self._staging[at] = self.driver.allocate(self.program.buffers[at].size_bytes)
        return self._staging[at]

    def pool(self) -> int:
        """Memory for results that belong to nobody else's allocator."""
        if not self._pool:
            self._pool = self.driver.create_pool(self.ordinal)
        return self._pool

    def secs(self, addresses: Mapping[int, int], repeats: int) -> list[float]:
        """The device's seconds of each of so many runs, after one that is not counted."""
        driver = self.driver
        found = []
        with self.lock, self.current():
            start, end = driver.create_event(timing=True), driver.create_event(timing=True)
            self.run(addresses, self.stream)
            for _ in range(repeats):
                driver.record(start, self.stream)
                self.run(addresses, self.stream)
                driver.record(end, self.stream)
                driver.synchronize(self.stream)
                found.append(driver.elapsed_secs(start, end))
            driver.destroy_event(start)
            driver.destroy_event(end)
        return found

    def _made(self, addresses: Mapping[int, int]) -> Launches:
        return Launches(self.driver, self.program.run, self._code.functions, {**self.addresses, **addresses})

    def _run_graph(self, addresses: Mapping[int, int], stream: int) -> None:
        driver = self.driver
        if self._graph is None or self._launches is None:
            self._launches = self._made(addresses)
            self._graph = self._recorded(self._launches)
        else:
            for at in self._launches.place(addresses):
                driver.update(self._graph.instance, self._graph.nodes[at], self._launches.prepared[at])
        driver.launch_graph(self._graph.instance, stream)

    def secs_without(self, addresses: Mapping[int, int], repeats: int) -> tuple[list[float], list[list[float]]]:
        """The device's seconds of runs as they are, and by launch of runs that leave it out, its zeroing included.

        Each graph without a launch takes turns with the whole one, so that both met the same state of the device; what
        later kernels compute then is of no use.
        """
        driver = self.driver
        whole, without = list[float](), list[list[float]]()
        with self.lock, self.current():
            driver.synchronize_event(self.done)
            start, end = driver.create_event(timing=True), driver.create_event(timing=True)

            def replayed(graph: Graph) -> float:
                driver.record(start, self.stream)
                driver.launch_graph(graph.instance, self.stream)
                driver.record(end, self.stream)
                driver.synchronize(self.stream)
                return driver.elapsed_secs(start, end)

            run, graphs = self.program.run, list[Graph]()
            try:
                for left_out in range(-1, len(run)):
                    kept = [launch for at, launch in enumerate(run) if at != left_out]
                    taken = Launches(driver, kept, self._code.functions, {**self.addresses, **addresses})
                    graphs.append(self._recorded(taken))
                    replayed(graphs[-1])
                    if left_out < 0:
                        continue
                    pairs = [(replayed(graphs[0]), replayed(graphs[-1])) for _ in range(repeats)]
                    whole += [one for one, _ in pairs]
                    without.append([one for _, one in pairs])
                    last = graphs.pop()
                    driver.destroy(last.graph, last.instance)
            finally:
                for graph in graphs:
                    driver.destroy(graph.graph, graph.instance)
                driver.destroy_event(start)
                driver.destroy_event(end)
        return whole, without

    @contextmanager
    def variants(self, addresses: Mapping[int, int], lists: Sequence[Sequence[int]]) -> Iterator[Replay]:
        """Graphs of parts of `run`, each a list of indices of launches, in order; they exist for as long as the block runs.

        Gives a function (number of a list, runs) -> the device's seconds of one of so many runs in a row. The first launch
        of a graph never begins early: what is before it is no kernel.
        """
        driver, run, graphs = self.driver, self.program.run, list[Graph]()
        with self.lock, self.current():
            driver.synchronize_event(self.done)
            start, end = driver.create_event(timing=True), driver.create_event(timing=True)

            def replay(number: int, runs: int) -> float:
                driver.record(start, self.stream)
                for _ in range(runs):
                    driver.launch_graph(graphs[number].instance, self.stream)
                driver.record(end, self.stream)
                driver.synchronize(self.stream)
                return driver.elapsed_secs(start, end) / runs

            try:
                for one in lists:
                    first, *rest = (run[at] for at in one)
                    kept = [replace(first, programmatic=False), *rest]
                    taken = Launches(driver, kept, self._code.functions, {**self.addresses, **addresses})
                    graphs.append(self._recorded(taken))
                yield replay
            finally:
                for graph in graphs:
                    driver.destroy(graph.graph, graph.instance)
                driver.destroy_event(start)
                driver.destroy_event(end)

    def _recorded(self, launches: Launches) -> Graph:
        driver, nodes = self.driver, list[int]()
        driver.begin_capture(self.stream)
        try:
            launches.queue(self.stream, lambda: nodes.append(driver.last_node(self.stream)))
        finally:
            graph = driver.end_capture(self.stream)
        return Graph(graph=graph, instance=driver.instantiate(graph), nodes=tuple(nodes))

    def __del__(self) -> None:
        with suppress(Exception):  # of a device or an interpreter that is coming to its end
            self.close()

    def close(self) -> None:
        """Waits for what is queued, and frees everything; it cannot be run any more."""
        if self._closed:
            return
        self._closed = True
        with self.current():
            driver = self.driver
            driver.synchronize_event(self.done)
            if self._graph is not None:
                driver.destroy(self._graph.graph, self._graph.instance)
                self._graph = None
            self._code.close()
            for address in (self._block, *self._staging.values()):
                driver.free(address)
            for pool in filter(None, (self._pool, self._passing_pool)):
                driver.destroy_pool(pool)
            for event in (self.done, self._arrived):
                driver.destroy_event(event)
            driver.destroy_stream(self.stream)


def _touched(program: Program, *, prepare: bool) -> set[int]:
    """Buffers that the launches take."""
    return {at for launch in (program.prepare if prepare else program.run) for at in launch.buffers}


def _laid_out(program: Program, buffers: Sequence[int]) -> tuple[dict[int, int], int]:
    """Offsets of buffers one behind another, and the bytes that they take."""
    places, size = {}, 0
    for at in buffers:
        places[at] = size
        size += -(-max(1, program.buffers[at].size_bytes) // ALIGNMENT) * ALIGNMENT
    return places, size
