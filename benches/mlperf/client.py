"""LoadGen's systems under test: what takes its samples to the library, and the library's answers back."""

import gc
import os
import queue
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import mlperf_loadgen as loadgen
import numpy as np

from library import Batcher

# A thread that only runs Python lets another one run after so many seconds; 5 ms would be a third of Server's limit.
sys.setswitchinterval(1e-4)
# Nothing here refers to itself. A collection goes through all that waits, and stops every thread meanwhile: 0.1 s for
# 100,000 waiting samples, so that more wait.
gc.disable()
LEAST_PART = 16  # rows of a batch that are worth another thread
MOST_ROWS = 16  # that a call to the batcher is filled up to, and once more: they have their answers together


class Client:
    """Producers submit what LoadGen issues; one thread waits, in the same order, and answers."""

    def __init__(self, engine, labels, producers):
        self._engine, self._labels = engine, labels
        self._waiting, self._flying = queue.SimpleQueue(), queue.SimpleQueue()
        self.answered = self.right = 0
        self._producers = [threading.Thread(target=_or_exit, args=(self._produce,)) for _ in range(producers)]
        self._completer = threading.Thread(target=_or_exit, args=(self._complete,))
        for thread in [*self._producers, self._completer]:
            thread.start()

    def flush(self):
        """Nothing is held back for the end of a query."""

    def close(self):
        """Ends the threads once everything is answered."""
        for _ in self._producers:
            self._waiting.put(None)
        for thread in self._producers:
            thread.join()
        self._flying.put(None)
        self._completer.join()

    def _take(self, most, grain):
        """What is waiting, while there is room for `grain` more; None at the end."""
        if (taken := self._waiting.get()) is None:
            return None
        ids, indices = taken
        while len(ids) + grain <= most:
            try:
                more = self._waiting.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._waiting.put(None)
                break
            ids += more[0]
            indices += more[1]
        return ids, indices

    def _answer(self, ids, indices, classes):
        first, size = classes.ctypes.data, classes.itemsize
        answers = [loadgen.QuerySampleResponse(id, first + size * row, size) for row, id in enumerate(ids)]
        loadgen.QuerySamplesComplete(answers)
        self.answered += len(ids)
        if self._labels is not None:
            self.right += int((self._labels[indices] == classes).sum())


class Batches(Client):
    """Producers acquire a batch each, and only then take what is waiting: a busy engine gets fuller batches.

    `grain` samples are handed to a producer as one: a whole batch where all are there at once, 1 where they come alone.
    A batch is filled by `fillers` threads at once, one call of numpy each, so that few batches are under way.
    """

    def __init__(self, engine, images, labels, producers, fillers, grain):
        self._images = np.zeros((len(images), engine.input.row_pitch), np.uint8)
        self._images[:, : engine.input.row_bytes] = images.reshape(len(images), -1)
        self._grain, self._batches, self._fillers = grain, 0, fillers
        self._others = ThreadPoolExecutor(max(1, producers * (fillers - 1)))
        super().__init__(engine, labels, producers)

    def issue(self, ids, indices):
        """What LoadGen calls: in Server with what is due, in Offline with everything."""
        for first in range(0, len(ids), self._grain):
            self._waiting.put((ids[first : first + self._grain], indices[first : first + self._grain]))

    def close(self):
        """And tells how many samples a batch had."""
        super().close()
        self._others.shutdown()
        return self.answered / self._batches

    def _produce(self):
        while True:
            batch = self._engine.acquire()
            taken = self._take(self._engine.capacity, self._grain)
            if taken is None:
                return self._engine.release(batch)
            ids, indices = taken[0], np.array(taken[1], np.intp)
            rows, part = self._engine.rows(batch, len(ids)), max(LEAST_PART, -(-len(ids) // self._fillers))
            parts = [(indices[first : first + part], rows[first : first + part]) for first in range(0, len(ids), part)]
            others = [self._others.submit(self._fill, *part) for part in parts[1:]]
            self._fill(*parts[0])
            for other in others:
                other.result()
            self._flying.put((self._engine.submit(batch, len(ids)), ids, indices))

    def _fill(self, indices, rows):
        np.take(self._images, indices, axis=0, out=rows, mode="clip")

    def _complete(self):
        while (flying := self._flying.get()) is not None:
            ticket, ids, indices = flying
            self._batches += 1
            self._answer(ids, indices, self._engine.wait(ticket))


class Rows(Client):
    """What LoadGen issues goes to the library's batcher, which makes the batches: what is waiting in one call."""

    def __init__(self, engine, images, labels, producers):
        self._images = np.ascontiguousarray(images.reshape(len(images), -1))
        self._batcher = Batcher(engine)
        super().__init__(engine, labels, producers)

    def issue(self, ids, indices):
        """What LoadGen calls with what is due."""
        for first in range(0, len(ids), MOST_ROWS):
            self._waiting.put((ids[first : first + MOST_ROWS], indices[first : first + MOST_ROWS]))

    def close(self):
        """And tells how many samples a batch had."""
        super().close()
        stats = self._batcher.stats()
        self._batcher.close()
        return stats.rows / stats.batches

    def _produce(self):
        first, size = np.uint64(self._images.ctypes.data), np.uint64(self._images.shape[1])
        while (taken := self._take(MOST_ROWS, 1)) is not None:
            ids, indices = taken
            indices = np.array(indices, np.uint64)
            self._flying.put((self._batcher.submit(first + size * indices), ids, indices))

    def _complete(self):
        while (flying := self._flying.get()) is not None:
            ticket, ids, indices = flying
            self._answer(ids, indices.astype(np.intp), self._batcher.wait(ticket, len(ids)))


def _or_exit(work):
    """LoadGen waits for ever for a sample that nobody answers."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
