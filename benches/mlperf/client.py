"""LoadGen's system under test: samples of any thread, gathered into an engine's batches."""

import os
import queue
import sys
import threading
import traceback

import mlperf_loadgen as loadgen
import numpy as np

# A thread that only runs Python lets another one run after so many seconds; 5 ms would be a third of Server's limit.
sys.setswitchinterval(1e-4)


class Client:
    """Producers acquire a batch each, and only then take what is waiting, so that a busy engine gets fuller batches.

    `grain` is how many samples are handed to a producer as one: 1 where they come alone, a whole batch where all are
    there at once. Filling a batch is one call of numpy, waiting for it one of the library; both let other threads run.
    """

    def __init__(self, engine, images, labels, producers, grain):
        self._engine, self._labels, self._grain = engine, labels, grain
        self._images = np.zeros((len(images), engine.input.row_pitch), np.uint8)
        self._images[:, : engine.input.row_bytes] = images.reshape(len(images), -1)
        self._waiting, self._flying = queue.SimpleQueue(), queue.SimpleQueue()
        self.answered = self.right = self.batches = 0
        self._producers = [threading.Thread(target=_or_exit, args=(self._produce,)) for _ in range(producers)]
        self._completer = threading.Thread(target=_or_exit, args=(self._complete,))
        for thread in [*self._producers, self._completer]:
            thread.start()

    def issue(self, ids, indices):
        """What LoadGen calls: in Server with what is due, in Offline with everything."""
        for first in range(0, len(ids), self._grain):
            self._waiting.put((ids[first : first + self._grain], indices[first : first + self._grain]))

    def flush(self):
        """Nothing is held back: a sample waits for a free batch and for nothing else."""

    def close(self):
        """Ends the threads once everything is answered."""
        for _ in self._producers:
            self._waiting.put(None)
        for thread in self._producers:
            thread.join()
        self._flying.put(None)
        self._completer.join()

    def _produce(self):
        while True:
            batch = self._engine.acquire()
            taken = self._take()
            if taken is None:
                return self._engine.release(batch)
            ids, indices = taken[0], np.array(taken[1], np.intp)
            np.take(self._images, indices, axis=0, out=self._engine.rows(batch, len(ids)), mode="clip")
            self._flying.put((self._engine.submit(batch, len(ids)), ids, indices))

    def _take(self):
        """What is waiting, as much as a batch holds; None at the end."""
        if (taken := self._waiting.get()) is None:
            return None
        ids, indices = taken
        while len(ids) + self._grain <= self._engine.capacity:
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

    def _complete(self):
        while (flying := self._flying.get()) is not None:
            ticket, ids, indices = flying
            classes = self._engine.wait(ticket)
            first, size = classes.ctypes.data, classes.itemsize
            answers = [loadgen.QuerySampleResponse(id, first + size * row, size) for row, id in enumerate(ids)]
            loadgen.QuerySamplesComplete(answers)
            self.answered += len(ids)
            self.batches += 1
            if self._labels is not None:
                self.right += int((self._labels[indices] == classes).sum())


def _or_exit(work):
    """LoadGen waits for ever for a sample that nobody answers."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
