"""The list of the values of all slots of a recorder, ``recorder.data``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from sonde.errors import ArgumentError
from sonde.recorders.slots import SlotReader


class Data(list[Any]):
    """The values of all slots of a recorder, in order, as they are whenever the list is read; it cannot be resized."""

    def __init__(self, recorder: SlotReader) -> None:
        super().__init__(slot.value for slot in recorder.subrecorders)
        self._recorder = recorder

    def _read(self) -> list[Any]:
        values = [slot.value for slot in self._recorder.subrecorders]
        super().__init__(values)
        return values

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def __getitem__(self, key: Any) -> Any:
        return self._read()[key]

    def __eq__(self, other: object) -> bool:
        return self._read() == other

    __hash__ = None  # as of any list

    def __repr__(self) -> str:
        return repr(self._read())

    def __setitem__(self, key: Any, item: Any) -> None:
        slots = self._recorder.subrecorders
        chosen = range(len(slots))[key]
        positions, items = (list(chosen), list(item)) if isinstance(chosen, range) else ([chosen], [item])
        if len(positions) != len(items):
            raise ArgumentError(f"{len(items)} values cannot be assigned to {len(positions)} slots")
        for position, each in zip(positions, items, strict=True):
            slots[position].held = each
        self._read()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ArgumentError("a recorder's data has one item for each slot: take a slot away with recorder.remove(index)")

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._read(),)
