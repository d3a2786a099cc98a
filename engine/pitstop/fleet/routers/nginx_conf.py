"""Servers in nginx's upstream blocks: found, and put `down`, with every other byte kept. Pure.

Source: nginx documentation, "Configuration File's Structure" and ngx_http_upstream_module
(`server address [parameters]`, parameter `down`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pitstop.model.errors import BadInput


@dataclass(frozen=True, slots=True)
class Token:
    """A word or one of `{};`, with where it stands."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class UpstreamServer:
    """A server's statement.

    Attributes:
        upstream: the block's name; empty in a file of statements alone, made to be included.
        tokens: its words, `server` first, without the `;`.
    """

    upstream: str
    tokens: tuple[Token, ...]

    @property
    def address(self) -> str:
        """Its address as it is written."""
        return self.tokens[1].text

    @property
    def down(self) -> bool:
        """Whether it is marked as taken out."""
        return any(token.text == "down" for token in self.tokens[2:])

    def __str__(self) -> str:
        return " ".join(token.text for token in self.tokens)


def upstream_servers(text: str) -> list[UpstreamServer]:
    """Return all servers of upstreams.

    Raises:
        ValueError: brackets or quotes do not fit.
    """
    found: list[UpstreamServer] = []
    blocks: list[list[Token]] = []
    statement: list[Token] = []
    for token in _tokens(text):
        if token.text == "{" and token.end - token.start == 1:
            blocks.append(statement)
            statement = []
        elif token.text == "}":
            if not blocks or statement:
                raise ValueError(f"unexpected }} at offset {token.start}")
            blocks.pop()
        elif token.text == ";":
            inside = blocks[-1] if blocks else []
            name = inside[1].text if len(inside) > 1 and inside[0].text == "upstream" else ""
            if len(statement) > 1 and statement[0].text == "server" and (name or not blocks):
                found.append(UpstreamServer(name, tuple(statement)))
            statement = []
        else:
            statement.append(token)
    if blocks or statement:
        raise ValueError("it ends within a block or a statement")
    return found


def find_server(text: str, address: str, upstream: str | None) -> UpstreamServer:
    """Return the one server of that address.

    Raises:
        BadInput: there is none, or several.
        ValueError: as `upstream_servers`.
    """
    found = [
        server
        for server in upstream_servers(text)
        if server.address == address and upstream in (None, server.upstream)
    ]
    if len(found) != 1:
        where = f"in upstream {upstream}" if upstream else "in the file"
        names = ", ".join(sorted({s.upstream or "(no block)" for s in found}))
        raise BadInput(
            address,
            f"{len(found)} servers of that address {where}" + (f": {names}" if names else ""),
            "name its upstream" if found and not upstream else "",
        )
    return found[0]


def set_down(text: str, address: str, upstream: str | None, down: bool) -> str:
    """Return the text with `down` at a server or without it; all else as it was.

    Raises:
        BadInput: there is no such server, or there are several.
        ValueError: as `upstream_servers`.
    """
    server = find_server(text, address, upstream)
    if server.down == down:
        return text
    if down:
        end = server.tokens[-1].end
        return f"{text[:end]} down{text[end:]}"
    for before, token in zip(server.tokens[1:-1], server.tokens[2:], strict=True):
        if token.text == "down":
            return text[: before.end] + text[token.end :]
    raise AssertionError("unreachable")  # pragma: no cover


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while position < len(text):
        character = text[position]
        if character.isspace():
            position += 1
        elif character == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif character in "{};":
            yield Token(character, position, position + 1)
            position += 1
        else:
            token = _word(text, position)
            yield token
            position = token.end


def _word(text: str, start: int) -> Token:
    quote = text[start] if text[start] in "\"'" else ""
    position, said = start + len(quote), []
    while position < len(text):
        character = text[position]
        if character == "\\" and position + 1 < len(text):
            said.append(text[position + 1])
            position += 2
            continue
        if quote and character == quote:
            return Token("".join(said), start, position + 1)
        if not quote and (character.isspace() or character in ";{"):
            # `${name}` is a variable within a word and opens no block.
            if not (character == "{" and text[position - 1] == "$"):
                break
            end = text.find("}", position)
            if end < 0:
                raise ValueError(f"a variable does not end, at offset {position}")
            said.append(text[position : end + 1])
            position = end + 1
            continue
        said.append(character)
        position += 1
    if quote:
        raise ValueError(f"a quote does not end, at offset {start}")
    return Token("".join(said), start, position)
