"""The trio shell of the conversation: a slow scheduler delays nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from node.conversation.commands import SendNote
from node.serve.shell import MAX_NOTES, ConversationShell
from protocol.formats.phase import Phase
from protocol.messages.work import Progress
from protocol.values.lease import Fence
from tests.node.conversation.parts import ANN, BOB, FakeLink, Shell


class NoteLink(FakeLink):
    """A link that records notes, or whose other end does not read."""

    def __init__(self, peer: str, *, reads: bool = True) -> None:
        super().__init__(peer)
        self.reads = reads
        self.notes: list[int] = []

    async def tell(self, note: Progress) -> None:
        if not self.reads:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        self.notes.append(note.seq)


async def test_a_scheduler_that_does_not_read_holds_up_nobody_elses_notes(tmp_path: Path) -> None:
    parts = Shell(tmp_path)
    shell = ConversationShell(
        parts.conversation,
        parts.files,
        begin_run=lambda command: None,
        stop_run=lambda command: None,
        reveal=lambda command: None,
        control=lambda command: None,
        forget=lambda command: None,
        changed=lambda: None,
    )
    deaf: Any = NoteLink(BOB, reads=False)
    ear: Any = NoteLink(ANN)
    late = SendNote(ear, Progress(lease="w", fence=Fence(incarnation=1, number=1), seq=1, phase=Phase.RUN))
    async with trio.open_nursery() as shell.nursery:
        for link in (deaf, ear):
            shell.nursery.start_soon(shell.use, link)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(2 * MAX_NOTES):
            for link in (deaf, ear):
                note = Progress(lease="w", fence=Fence(incarnation=1, number=1), seq=number, phase=Phase.RUN)
                parts.conversation.commands.emit(SendNote(link, note))
            shell.carry_out()
            await trio.testing.wait_all_tasks_blocked()
        shell.nursery.cancel_scope.cancel()
    assert ear.notes == list(range(2 * MAX_NOTES))
    parts.conversation.commands.emit(late)
    shell.carry_out()  # the links are closed, so the note is dropped
