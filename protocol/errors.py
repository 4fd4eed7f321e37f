"""Every error that one part of Sark raises to another, in one tree.

    SarkError
    ├─ ProtocolError
    │   ├─ LocalProtocolError      we broke the rules: a bug of ours
    │   └─ RemoteProtocolError     the peer broke the rules: the stream is reset, our state is unchanged
    ├─ Refused                     a peer refused, with a reason from `protocol.words.Reason`
    ├─ NotPermitted                a token does not prove what it should, or a ticket cannot be used
    │   └─ BadTicket               a text is not a ticket or token, or is damaged
    ├─ Unreachable                 the peer cannot be reached, or stopped answering; a retry may help
    │   └─ Overloaded              the peer has no time for us now, and did nothing
    ├─ RunError                    a task could not be measured (broken model, crash, time limit)
    ├─ CampaignError               the campaign file is wrong: file, line, hint
    ├─ SettingsError               a setting in config.toml, the environment or a flag is wrong
    ├─ NothingFits                 no device of the swarm fits a task
    └─ ResourceError               this machine lacks something: port, disk, data folder, rights
        └─ StoreUnreachable        the database server of the store does not answer; a retry may help

Each error carries what the command line prints: a line that says what happened, a line that says why or what to do (`hint`), and an exit
code.
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
"""The exit codes of `sark-node`, and their meanings."""


class SarkError(Exception):
    """Base of all Sark errors; never raised itself."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class ProtocolError(SarkError):
    """Base of the two kinds of protocol violations; never raised itself."""


class LocalProtocolError(ProtocolError):
    """We tried something that the tables do not allow. State is unchanged; it is a bug to fix."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol does not allow. Its stream must be reset; our state is unchanged."""


class Refused(SarkError):
    """A peer refused. `reason` is one of the words; `retry_after_s` is None if a retry cannot help."""

    exit_code: ClassVar[int] = 5

    def __init__(
        self, what: str, *, reason: Reason, retry_after_s: float | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.reason = reason
        self.retry_after_s = retry_after_s


class NotPermitted(SarkError):
    """A token does not prove that its bearer may do this, or a join ticket cannot be used. Never quotes the token."""

    exit_code: ClassVar[int] = 5


class BadTicket(NotPermitted):
    """A text given as a ticket or token is not one, or is damaged."""

    exit_code: ClassVar[int] = 2


class Unreachable(SarkError):
    """There is no link to the peer, or the existing one fell silent. What the peer did last is unknown.

    `refused`: at every address, its machine answered that nobody listens there any more.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, what: str, *, hint: str = "", refused: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.refused = refused


class Overloaded(Unreachable):
    """The peer answers, but would not do the work before our deadline, and did none of it."""

    def __init__(self, what: str, *, retry_after_s: float) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class RunError(SarkError):
    """A task could not be measured. `permanent`: the model itself is at fault, so another device will not do better."""

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
        """The message without file and line."""
        self.others: tuple[tuple[int, str, str], ...] = ()
        """Further errors in the file: line, what, hint. They are also counted in `hint`."""
        self.first_hint = hint
        """The hint without the count of further errors."""


class SettingsError(SarkError):
    """A setting or a flag is wrong: which one, its source, and the correct form."""

    exit_code: ClassVar[int] = 2


class NothingFits(SarkError):
    """No device of the swarm fits a task; `hint` contains the counts clause by clause."""

    exit_code: ClassVar[int] = 3


class ResourceError(SarkError):
    """This machine lacks something the command needs: a port, disk, a free data folder, a right."""

    exit_code: ClassVar[int] = 6


class StoreUnreachable(ResourceError):
    """The database server of the store does not answer. Data stored before is still there."""


def first_error(group: BaseExceptionGroup[E]) -> E:
    """The first error in nested groups."""
    first = group.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
