"""Order of the windows if each is used once per epoch: pure arithmetic on window numbers, without stored state.

Shapes: N windows in an epoch, numbered in their order on disk; B windows in the global batch.

    place in the epoch ─► columns ─► shuffled within a group of blocks ─► blocks shuffled ─► rotated ─► window number

Each arrow is a permutation of 0 … N − 1 that depends only on the seed and the epoch, so the windows of any step can be
computed without the steps before it. A step may span two epochs: no window is omitted or repeated.

- **Blocks** of windows adjacent on disk are each read at once. Each epoch has another order of the blocks and another
  first window (the rotation).
- The windows of a **group** of a few blocks are shuffled together; a process that reads a group holds all of it.
- **Columns**: the groups of a buffer are read in parallel, each by its own part of the global batch. A batch therefore
  has windows from the whole buffer, but each rank reads its part from its own groups. All ranks together read a corpus
  once.

With one block as large as the corpus, the order is a plain permutation of all windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.draws import Stream, draws
from heartlm.kernels.permute import mix, permute

ORDER_STREAM = 4
GROUP_BLOCKS, BUFFER_BLOCKS = 4, 64


@dataclass(frozen=True)
class EpochOrder:
    """Order of the windows over all epochs.

    Attributes:
        num_windows: number of windows N, at least 1.
        batch_size: number of windows B in the global batch.
        seed: random seed of the order.
        block: number of windows in a block.
    """

    num_windows: int
    batch_size: int
    seed: int
    block: int

    @property
    def group(self) -> int:
        """Number of windows in a group."""
        return GROUP_BLOCKS * self.block

    @property
    def buffer(self) -> int:
        """Number of windows in a buffer."""
        return BUFFER_BLOCKS * self.block

    def numbers(self, step: int, first_window: int, num_windows: int) -> NDArray[np.int64]:
        """Return windows `first_window` to `first_window + num_windows` of the global batch of `step`; int64."""
        first = step * self.batch_size + first_window
        epoch, place = np.divmod(np.arange(first, first + num_windows), self.num_windows)
        for each in np.unique(epoch):
            inside = epoch == each
            place[inside] = self._shuffled(int(each), place[inside])
        return place

    def buffer_at(self, step: int) -> int:
        """Return the buffer that contains the first window of `step`; buffers are counted through all epochs."""
        epoch, place = divmod(step * self.batch_size, self.num_windows)
        return epoch * -(-self.num_windows // self.buffer) + place // self.buffer

    def reads(self, buffer: int, first_window: int, num_windows: int) -> list[range]:
        """Return the window numbers that a part of every global batch reads from `buffer`, one range per block."""
        epoch, place = divmod(buffer, -(-self.num_windows // self.buffer))
        begin = place * self.buffer
        size = min(self.buffer, self.num_windows - begin)
        # Window w of a global batch has a position g with g % B == w. In the buffer it is at g - epoch * N - begin,
        # and that modulo B is its column. Columns of neighbouring windows may wrap around B: at most two ranges.
        column = (first_window - epoch * self.num_windows - begin) % self.batch_size
        columns = [range(column, min(column + num_windows, self.batch_size))]
        columns.append(range(max(0, column + num_windows - self.batch_size)))
        groups = {
            group
            for part in columns
            if part
            for first, stop in [self._columns(np.array([part.start, part.stop]), size)]
            for group in range((begin + int(first)) // self.group, -(-(begin + int(stop)) // self.group))
        }
        return [part for group in sorted(groups) for part in self._windows_of(epoch, group)]

    def _shuffled(self, epoch: int, place: NDArray[np.int64]) -> NDArray[np.int64]:
        rotation, block_key, group_key = self._keys(epoch)
        group, inside = np.divmod(self._in_columns(place), self.group)
        whole, rest = divmod(self.num_windows, self.group)  # the last group holds `rest` windows
        # Each group has its own key; the shorter last one is a permutation of another length.
        keys = mix(group.astype(np.uint64) + group_key)
        for part, size in ((group < whole, self.group), (group == whole, rest)):
            if part.any():
                inside[part] = permute(inside[part], size, keys[part])
        # Blocks are permuted, windows keep their places in the block; then the rotation shifts all numbers.
        block, inside = np.divmod(group * self.group + inside, self.block)
        return (self._on_disk(block, block_key) * self.block + inside + rotation) % self.num_windows

    def _keys(self, epoch: int) -> tuple[int, NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the rotation, the key of the blocks and the key of the groups."""
        drawn = draws(Stream(self.seed, epoch, ORDER_STREAM), 0, 3)
        return int(drawn[0]) % self.num_windows, drawn[1:2], drawn[2:3]

    def _in_columns(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places in the reading order of the blocks of each buffer, column by column."""
        buffer, inside = np.divmod(place, self.buffer)
        row, column = np.divmod(inside, self.batch_size)
        size = np.minimum(self.buffer, self.num_windows - buffer * self.buffer)
        return buffer * self.buffer + self._columns(column, size) + row

    def _columns(self, column: NDArray[np.int64], size: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the start of each column if `size` places are distributed over `batch_size` columns in turn."""
        height, longer = np.divmod(size, self.batch_size)  # the first `longer` columns have one more place
        begin: NDArray[np.int64] = column * height + np.minimum(column, longer)
        return begin

    def _on_disk(self, block: NDArray[np.int64], key: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Map blocks from their places in the epoch to their places on disk; a shorter last block keeps its place."""
        whole = max(1, self.num_windows // self.block)
        return np.where(block < whole, permute(np.minimum(block, whole - 1), whole, key), block)

    def _windows_of(self, epoch: int, group: int) -> list[range]:
        """Return the window numbers of `group`: one range per block, two if the rotation splits the block."""
        rotation, block_key, _ = self._keys(epoch)
        num_blocks = -(-self.num_windows // self.block)
        blocks = np.arange(group * GROUP_BLOCKS, min((group + 1) * GROUP_BLOCKS, num_blocks))
        parts = []
        for block in self._on_disk(blocks, block_key).tolist():
            first = block * self.block + rotation
            stop = min((block + 1) * self.block, self.num_windows) + rotation
            parts += [range(first, min(stop, self.num_windows)), range(max(first, self.num_windows), stop)]
        wrapped = (
            range(part.start % self.num_windows, (part.stop - 1) % self.num_windows + 1) for part in parts if part
        )
        return list(wrapped)
