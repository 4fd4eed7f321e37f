"""Every error a part of Sark shows another, in one tree.

    SarkError
    ├─ ProtocolError
    │   ├─ LocalProtocolError      we broke the rules: a bug of ours
    │   └─ RemoteProtocolError     the peer did: the stream is reset, nothing of ours changed
    ├─ Refused                     a peer said no, with a reason from `protocol.words.Reason`
    ├─ NotPermitted                a token does not show what it should, or a ticket cannot be used
    │   └─ BadTicket               a ticket or token is damaged, or none at all
    ├─ Unreachable                 no way to the peer, or it stopped answering; trying again may help
    │   └─ Overloaded              it has no time for us now: it did nothing
    ├─ RunError                    a task could not be measured (broken model, crash, time limit)
    ├─ CampaignError               the campaign file is wrong: file, line, hint
    ├─ SettingsError               a setting in config.toml, the environment or a flag is wrong
    ├─ NothingFits                 no device of the swarm fits a task
    └─ ResourceError               this machine lacks something: port, disk, data folder, rights
        └─ StoreUnreachable        the database server of the store does not answer; trying again may help

Each carries what the command line prints: one line for what, one for why or what to do (`hint`), and an exit code.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeVar

from protocol.words import Reason

E = TypeVar("E", bound=BaseException)
EXIT_CODES: Final = {
    0: "success",
    1: "the campaign ended with failed tasks, or a comparison found what it was asked to fail for",
    2: "bad input: a file, a flag or a setting is wrong",
    3: "no device fits what was asked for",
    4: "no peer or gate can be reached, or a device did not confirm",
    5: "not permitted",
    6: "a local resource is missing: port, disk, folder, or a package",
    130: "interrupted by Ctrl-C; a campaign goes on, except that of `bench --on`, which is cancelled",
}
"""Of `sark-node`, and what each means."""


class SarkError(Exception):
    """Base of all of them; never raised itself."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class ProtocolError(SarkError):
    """Base of the two ways a conversation can go wrong; never raised itself."""


class LocalProtocolError(ProtocolError):
    """We tried something the tables do not allow. State is unchanged; it is a bug to be mended."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the protocol does not allow. Its stream must be reset; our state is unchanged."""


class Refused(SarkError):
    """A peer answered no. `reason` is one of the words; `retry_after_s` is None where trying again is no use."""

    exit_code: ClassVar[int] = 5

    def __init__(
        self, what: str, *, reason: Reason, retry_after_s: float | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.reason = reason
        self.retry_after_s = retry_after_s


class NotPermitted(SarkError):
    """A token does not show that its bearer may do this, or a join ticket cannot be used. Never quotes the token."""

    exit_code: ClassVar[int] = 5


class BadTicket(NotPermitted):
    """What was typed as a ticket or token is none, or is damaged."""

    exit_code: ClassVar[int] = 2


class Unreachable(SarkError):
    """No link to the peer could be had, or the one there was fell silent. Nothing is known of what it did last.

    `refused`: its machine answered at every address that nobody listens there any more.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, what: str, *, hint: str = "", refused: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.refused = refused


class Overloaded(Unreachable):
    """The peer answers, but would not do what was asked before our deadline, and did nothing of it."""

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class RunError(SarkError):
    """A task could not be measured. `permanent`: the model itself is at fault, another device will not do better."""

    def __init__(self, what: str, *, reason: Reason, permanent: bool, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.reason = reason
        self.permanent = permanent


class CampaignError(SarkError):
    """The campaign file is wrong. Nothing was stored or sent."""

    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, *, file: str = "", line: int | None = None, hint: str = "") -> None:
        place = f"{file}:{line}: " if line is not None else f"{file}: " if file else ""
        super().__init__(place + what, hint=hint)
        self.file = file
        self.line = line
        self.detail = what
        """Without the place."""
        self.others: tuple[tuple[int, str, str], ...] = ()
        """What else is wrong in the file: line, what, hint. Also counted in `hint`."""
        self.first_hint = hint
        """The hint without what is said there of others."""


class SettingsError(SarkError):
    """A setting or a flag is wrong: which one, its source, and the correct form."""

    exit_code: ClassVar[int] = 2


class NothingFits(SarkError):
    """No device of the swarm fits a task; `hint` carries the clause by clause count."""

    exit_code: ClassVar[int] = 3


class ResourceError(SarkError):
    """This machine lacks something the command needs: a port, disk, a free data folder, a right."""

    exit_code: ClassVar[int] = 6


class StoreUnreachable(ResourceError):
    """The database server of the store does not answer. What was stored before is there."""


def first_error(group: BaseExceptionGroup[E]) -> E:
    """The first error in nested groups."""
    first = group.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
