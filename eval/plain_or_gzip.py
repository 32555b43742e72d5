"""A file's bytes, whether or not it is compressed."""

import gzip
import zlib
from pathlib import Path

_MAGIC = b"\x1f\x8b"


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file, unpacked if they are gzip, whatever the file is called.

    Raises:
        OSError: it cannot be read; ``strerror`` says why, of a broken gzip file as well.
    """
    data = Path(path).read_bytes()
    if not data.startswith(_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise OSError(None, f"broken gzip file ({error})") from None
