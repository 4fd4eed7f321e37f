"""The gate of this home: the file in which a running gate leaves its addresses for the home's other roles."""

from __future__ import annotations

from swarm.home import Home


def local_gates(home: Home) -> tuple[str, ...]:
    """The gate that runs, or last ran, on this home; none is no error."""
    try:
        lines = home.gate_file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    return tuple(line.strip() for line in lines if line.strip())
