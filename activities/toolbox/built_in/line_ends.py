"""Line endings of edited files."""


def with_line_ends_of(text: str, old: str, new: str) -> tuple[str, str]:
    """Return the old and new text with the file's line endings, because models read and write plain newlines."""
    if old in text or "\r\n" not in text:
        return old, new
    return old.replace("\r\n", "\n").replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
