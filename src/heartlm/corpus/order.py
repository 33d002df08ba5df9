"""Which window comes when, where every window is seen once in each epoch: arithmetic on window numbers, nothing kept.

Shapes: N windows of an epoch, numbered as they lie on disk; B windows in the global batch.

    place in the epoch ─► columns ─► shuffled within a group of blocks ─► blocks shuffled ─► rotated ─► window number

Each arrow is a permutation of 0 … N − 1 that follows from the seed and the epoch, so the windows of any step are known
without those before. A step may lie across two epochs: no window is left out and none comes twice.

- **Blocks** of windows that are neighbours on disk are read in one go; they come in another order in each epoch, and
  begin at another window (the rotation).
- **Groups** of a few blocks are shuffled as one; a process that reads a group holds all of it.
- **Columns**: the groups of a buffer are read side by side, each by its own part of the global batch. So a batch has
  windows from all over the buffer, while the part of it that one rank takes comes from that rank's own groups, and many
  ranks read a corpus once between them.

With one block as large as the corpus this is a plain permutation of all windows.
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
    """The order of windows, epoch after epoch.

    Attributes:
        num_windows: N, at least 1.
        batch_size: B.
        seed: of the order.
        block: windows of a block.
    """

    num_windows: int
    batch_size: int
    seed: int
    block: int

    @property
    def group(self) -> int:
        """Windows of a group."""
        return GROUP_BLOCKS * self.block

    @property
    def buffer(self) -> int:
        """Windows of a buffer."""
        return BUFFER_BLOCKS * self.block

    def numbers(self, step: int, first_window: int, num_windows: int) -> NDArray[np.int64]:
        """Windows `first_window` to `first_window + num_windows` of the global batch of `step`; int64."""
        first = step * self.batch_size + first_window
        epoch, place = np.divmod(np.arange(first, first + num_windows), self.num_windows)
        for each in np.unique(epoch):
            inside = epoch == each
            place[inside] = self._shuffled(int(each), place[inside])
        return place

    def buffer_at(self, step: int) -> int:
        """The buffer that the first window of `step` is from; buffers are counted through all epochs."""
        epoch, place = divmod(step * self.batch_size, self.num_windows)
        return epoch * -(-self.num_windows // self.buffer) + place // self.buffer

    def reads(self, buffer: int, first_window: int, num_windows: int) -> list[range]:
        """Numbers of the windows that a part of every global batch reads from `buffer`, block by block."""
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
        # Each group has a key of its own; the shorter last one is a permutation of another length.
        keys = mix(group.astype(np.uint64) + group_key)
        for part, size in ((group < whole, self.group), (group == whole, rest)):
            if part.any():
                inside[part] = permute(inside[part], size, keys[part])
        # Blocks change places, windows keep theirs in the block; then all numbers turn by the rotation.
        block, inside = np.divmod(group * self.group + inside, self.block)
        return (self._on_disk(block, block_key) * self.block + inside + rotation) % self.num_windows

    def _keys(self, epoch: int) -> tuple[int, NDArray[np.uint64], NDArray[np.uint64]]:
        """Rotation, key of the blocks, key of the groups."""
        drawn = draws(Stream(self.seed, epoch, ORDER_STREAM), 0, 3)
        return int(drawn[0]) % self.num_windows, drawn[1:2], drawn[2:3]

    def _in_columns(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in the order in which the blocks of each buffer are read, column by column."""
        buffer, inside = np.divmod(place, self.buffer)
        row, column = np.divmod(inside, self.batch_size)
        size = np.minimum(self.buffer, self.num_windows - buffer * self.buffer)
        return buffer * self.buffer + self._columns(column, size) + row

    def _columns(self, column: NDArray[np.int64], size: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Where each column begins when `size` places are dealt out to `batch_size` columns in turn."""
        height, longer = np.divmod(size, self.batch_size)  # the first `longer` columns hold one place more
        begin: NDArray[np.int64] = column * height + np.minimum(column, longer)
        return begin

    def _on_disk(self, block: NDArray[np.int64], key: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Blocks by their place in the epoch, as they lie on disk; the last one, where it is shorter, stays."""
        whole = max(1, self.num_windows // self.block)
        return np.where(block < whole, permute(np.minimum(block, whole - 1), whole, key), block)

    def _windows_of(self, epoch: int, group: int) -> list[range]:
        """Numbers of the windows of `group`, one range a block, two where the rotation cuts it."""
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
