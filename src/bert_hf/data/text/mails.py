"""Decodes mails and mbox files to text: subject and body, without other headers, attachments and markup."""

import contextlib
import email
import re
from collections.abc import Iterable, Iterator
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from html.parser import HTMLParser

_USUAL_HEADERS = frozenset(
    b"from to cc subject date received return-path delivered-to message-id mime-version content-type reply-to sender "
    b"content-transfer-encoding organization newsgroups".split()
)
_FROM_WITH_TIME = re.compile(rb"From \S.*\d:\d\d")  # the first line of a mail in an mbox; not `From here on, …`
_HEADER = re.compile(rb"([A-Za-z][A-Za-z0-9-]*):(?:\s|$)")
_BLOCKS = frozenset("address blockquote br div dd dl dt h1 h2 h3 h4 h5 h6 hr li ol p pre table td th tr ul".split())


def is_mail(head: bytes) -> bool:
    """Return whether a file begins with two of a mail's usual headers, after the line `From …` of an mbox if any."""
    lines = head.splitlines()
    if head.startswith(b"From "):
        lines = lines[1:]
    names = set()
    for line in lines:
        match = _HEADER.match(line)
        if match:
            names.add(match[1].lower())
        elif not line[:1].isspace() or not line.strip():  # not the rest of a long header
            break
    return len(names & _USUAL_HEADERS) >= 2


def split_mbox(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield each mail of an mbox, without its line `From …`: the first line, or one with a time after a blank line."""
    mail: list[bytes] = []
    blank = True
    for number, line in enumerate(lines):
        if blank and (_FROM_WITH_TIME.match(line) or (number == 0 and line.startswith(b"From "))):
            if mail:
                yield b"".join(mail)
            mail = []
        else:
            mail.append(line)
        blank = not line.strip()
    if mail:
        yield b"".join(mail)


def mail_text(raw: bytes) -> str:
    """Return subject and body of a mail; of a body that is both plain text and HTML the plain one."""
    mail = email.message_from_bytes(raw)
    bodies: dict[str, list[str]] = {"plain": [], "html": []}
    for part in mail.walk():
        kind = part.get_content_subtype()
        if part.get_content_maintype() == "text" and kind in bodies and part.get_content_disposition() != "attachment":
            content = part.get_payload(decode=True)
            text = _decode(content, part.get_content_charset("utf-8")) if isinstance(content, bytes) else ""
            bodies[kind].append(text if kind == "plain" else html_text(text))
    body = "\n".join(map(str.strip, bodies["plain"])) or "\n".join(map(str.strip, bodies["html"]))
    return "\n\n".join(filter(None, [_subject(mail), body.replace("\r\n", "\n")]))


def _subject(mail: Message) -> str:
    """Return the subject of a mail on one line, decoded; an empty string if it has none."""
    subject = next((value for name, value in mail.raw_items() if name.lower() == "subject"), "")
    with contextlib.suppress(HeaderParseError, LookupError, ValueError):  # else it stays encoded
        subject = str(make_header(decode_header(subject)))
    subject = _decode(subject.encode("utf-8", "surrogateescape"))  # bytes without a charset are surrogates in it
    return " ".join(subject.split())


def _decode(raw: bytes, charset: str = "utf-8") -> str:
    """Return bytes as text: in the named character set, else in UTF-8, else in Windows-1252."""
    for encoding in (charset.replace("gb2312", "gb18030"), "utf-8"):  # mails name the smaller Chinese set
        try:
            return raw.decode(encoding)
        except (LookupError, UnicodeDecodeError):
            continue
    return raw.decode("cp1252", "replace")


class _TextCollector(HTMLParser):
    """Collects in `parts` the text that a page shows, and a line break where a block element begins."""

    def __init__(self):
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0  # open elements whose content is not shown

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in ("script", "style", "title")
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        self.hidden = max(0, self.hidden - (tag in ("script", "style", "title")))  # it may lack a start tag

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def html_text(html: str) -> str:
    """Return the text that an HTML page or mail shows, without tags and blank lines."""
    parser = _TextCollector()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(filter(None, lines))
