"""The hostfile: which machines, in which order, with how many NPUs (docs/cluster.md has the format).

The order of the file is the order of the node ranks. Every mistake of a file is reported at once, with its line;
a missing or empty file is an error and never means "this machine".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ms_recipe.errors import Problem, RecipeError, raise_all

FORM = "<host> slots=<N>"
_KEYS = ("slots", "max_slots", "port")
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\\-]*\$?\Z")
_LIMIT = 65536


@dataclass(frozen=True)
class Host:
    """One machine. ``name`` has no user, port or brackets: it is the network address (HF-10, HF-12)."""

    name: str
    user: str | None = None
    port: int | None = None
    slots: int = 0
    line: int = 0

    @property
    def label(self) -> str:
        """How reports and log files name the host: the name, with the port where one is given."""
        return self.name if self.port is None else f"{self.name}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True for localhost and 127.0.0.0/8, ::1."""
        return is_loopback(self.name)

    def as_dict(self) -> dict[str, Any]:
        """The host for ``--json``."""
        return {"host": self.name, "user": self.user, "port": self.port, "slots": self.slots, "line": self.line}


@dataclass(frozen=True)
class Hostfile:
    """What was understood of a hostfile. ``hosts`` is in rank order; ``spares`` replace dead hosts at a restart."""

    path: str
    hosts: tuple[Host, ...]
    spares: tuple[Host, ...] = field(default=())

    def select(
        self, include: Sequence[str] = (), exclude: Sequence[str] = (), first: int | None = None
    ) -> Hostfile:
        """The hosts left by ``--include``, ``--exclude`` (names or bracket ranges) and ``--first N``, in file order.

        Raises:
            RecipeError: a name that is not in the file, or nothing (or fewer than ``first``) left.
        """
        known = {h.name for h in self.hosts} | {h.label for h in self.hosts}
        problems: list[Problem] = []

        def names(option: str, patterns: Sequence[str]) -> set[str]:
            found: set[str] = set()
            for pattern in (p for text in patterns for p in _split_commas(text)):
                try:
                    expanded = list(expand(pattern))
                except ValueError as error:
                    problems.append(Problem(f"{option} {pattern}: {error}"))
                    continue
                for name in expanded:
                    if name not in known:
                        problems.append(Problem(f"{option} {name}: no such host", self.path,
                                                "the file has " + ", ".join(h.label for h in self.hosts[:8])))
                    found.add(name)
            return found

        wanted, unwanted = names("--include", include), names("--exclude", exclude)
        raise_all(problems)
        hosts = [h for h in self.hosts if not wanted or {h.name, h.label} & wanted]
        hosts = [h for h in hosts if not {h.name, h.label} & unwanted]
        if first is not None:
            if first < 1 or first > len(hosts):
                raise RecipeError(Problem(f"--first {first}: {len(hosts)} hosts are there to take from", self.path))
            hosts = hosts[:first]
        if not hosts:
            raise RecipeError(Problem("no host is left after --include and --exclude", self.path))
        spares = tuple(h for h in self.spares if not {h.name, h.label} & unwanted)
        return replace(self, hosts=tuple(hosts), spares=spares)

    def as_dict(self) -> dict[str, Any]:
        """The file for ``--json``; the index of a host is its node rank."""
        return {"path": self.path, "hosts": [h.as_dict() for h in self.hosts],
                "spares": [h.as_dict() for h in self.spares]}


def is_loopback(address: str) -> bool:
    """True when other machines cannot reach ``address``: localhost, 127.0.0.0/8, ::1."""
    if address.lower() in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _split_commas(text: str) -> list[str]:
    """Split at commas that are outside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def expand(pattern: str) -> Iterator[str]:
    """``npu[01-03,7]-ib`` -> npu01-ib npu02-ib npu03-ib npu7-ib, in the order written, zeros kept.

    Raises:
        ValueError: brackets that do not close, an empty or descending range, or more than 65536 names.
    """
    match = re.search(r"\[([^\[\]]*)\]", pattern)
    if match is None:
        if "[" in pattern or "]" in pattern:
            raise ValueError("brackets do not match")
        yield pattern
        return
    head, tail = pattern[: match.start()], pattern[match.end():]
    for part in match.group(1).split(","):
        piece = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if piece is None:
            raise ValueError(f"'{part}' is not a number or a range such as 01-16")
        low, high = piece.group(1), piece.group(2) or piece.group(1)
        width = len(low) if low.startswith("0") else 1
        if int(high) < int(low):
            raise ValueError(f"the range {part.strip()} goes down")
        if int(high) - int(low) >= _LIMIT:
            raise ValueError(f"the range {part.strip()} has more than {_LIMIT} names")
        for number in range(int(low), int(high) + 1):
            for rest in expand(tail):
                yield f"{head}{number:0{width}d}{rest}"


def _address(spec: str) -> tuple[str | None, str, int | None]:
    """``[user@]host[:port]`` or ``[user@][ipv6][:port]`` -> user, host pattern, port. Raises ValueError."""
    user: str | None = None
    if "@" in spec:
        user, spec = spec.rsplit("@", 1)
        if not _USER.match(user):
            raise ValueError(f"'{user}' is not a user name")
    port: str | None = None
    v6 = re.fullmatch(r"\[([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%\w+)?)\](?::(.*))?", spec)
    if v6:
        host, port = v6.group(1), v6.group(2)
        try:
            ipaddress.IPv6Address(host.split("%")[0])
        except ValueError:
            raise ValueError(f"'{host}' is not an IPv6 address") from None
    elif spec.count(":") > 1:
        raise ValueError("an IPv6 address is written in brackets, [fe80::1]")
    else:
        host, colon, rest = spec.partition(":")
        port = rest if colon else None
    return user, host, None if port is None else _number("port", port, 65535)


def _number(key: str, text: str, high: int = 1 << 20) -> int:
    if not re.fullmatch(r"[0-9]+", text) or not 1 <= int(text) <= high:
        raise ValueError(f"{key}={text} is not a whole number from 1 to {high}" if text else f"{key}= has no number")
    return int(text)


def _names(pattern: str) -> list[str]:
    if ":" in pattern:  # IPv6, checked already
        return [pattern]
    found = list(expand(pattern))
    for name in found:
        if not _NAME.match(name):
            raise ValueError(f"'{name}' is not a host name")
        if re.fullmatch(r"[0-9.]+", name):
            try:
                ipaddress.IPv4Address(name)
            except ValueError:
                raise ValueError(f"'{name}' is not an IPv4 address") from None
    return found


def _parse_line(text: str, number: int, default_slots: int | None) -> list[Host]:
    tokens = re.sub(r"\s*=\s*", "=", text).split()
    user, pattern, port = _address(tokens[0])
    values: dict[str, int] = {}
    for token in tokens[1:]:
        key, equals, value = token.partition("=")
        key = key.replace("-", "_").lower()
        if not equals or key not in _KEYS:
            raise ValueError(f"'{token}' is not known")
        if key in values:
            raise ValueError(f"{key}= is given twice")
        values[key] = _number(key, value, 65535 if key == "port" else 1 << 20)
    if "port" in values:
        if port is not None and port != values["port"]:
            raise ValueError(f"two ports, {port} and {values['port']}")
        port = values["port"]
    slots = values.get("slots", default_slots)
    if slots is None:
        raise ValueError("no slots=, and the recipe has no cluster.npus_per_node to take instead")
    if values.get("max_slots", slots) < slots:
        raise ValueError(f"max_slots={values['max_slots']} is below slots={slots}")
    return [Host(name, user, port, slots, number) for name in _names(pattern)]


def _repeated(hosts: Iterable[Host], where: str) -> Iterator[Problem]:
    seen: dict[str, Host] = {}
    for host in hosts:
        # Two ports on one name are two containers or two network namespaces; a name alone is one machine.
        first = seen.setdefault(host.label.lower(), host)
        if first is not host:
            yield Problem(f"host {host.label} is on lines {first.line} and {host.line}", f"{where}:{host.line}",
                          "give each host once")


def parse_hostfile(path: str | Path, default_slots: int | None = None) -> Hostfile:
    """Read the hostfile at ``path``; hosts without ``slots=`` get ``default_slots`` (the recipe's npus_per_node).

    Raises:
        RecipeError: the file is missing, not a file, unreadable or has no host, or lines are wrong (all are reported).
    """
    file = Path(path).expanduser()
    where = str(path)
    fix = "give the file with one host a line, such as 192.168.1.100 slots=8"
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(Problem("hostfile not found", where, fix)) from None
    except IsADirectoryError:
        raise RecipeError(Problem("hostfile is a folder", where, fix)) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RecipeError(Problem(f"hostfile cannot be read: {reason}", where)) from None
    return parse_text(text, where, default_slots)


def parse_text(text: str, where: str, default_slots: int | None = None) -> Hostfile:
    """:func:`parse_hostfile` on text; ``where`` is the name that messages give it."""
    hosts: list[Host] = []
    spares: list[Host] = []
    problems: list[Problem] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if not line:
            continue
        spare = re.match(r"spare\s+(?![^\s=]+\s*=)(?=\S)", line)  # "spare slots=8" is a host of that name
        try:
            found = _parse_line(line[spare.end():] if spare else line, number, default_slots)
            (spares if spare else hosts).extend(found)
        except ValueError as error:
            problems.append(Problem(f"line {number}: '{raw.strip()}': {error}", f"{where}:{number}",
                                    f"the form is {FORM}"))
    problems.extend(_repeated([*hosts, *spares], where))
    counts = sorted({h.slots for h in (*hosts, *spares)})
    if len(counts) > 1:
        example = [next(h for h in (*hosts, *spares) if h.slots == n) for n in counts[:4]]
        problems.append(Problem(
            "hosts have different slots: " + ", ".join(f"{h.label} {h.slots} (line {h.line})" for h in example),
            where, "give all hosts the same slots= (torchrun needs one --nproc_per_node)"))
    if not hosts and not problems:
        problems.append(Problem("hostfile has no host", where, "give one host a line, such as 192.168.1.100 slots=8"))
    raise_all(problems)
    return Hostfile(where, tuple(hosts), tuple(spares))
