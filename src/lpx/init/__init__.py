"""`lpx init`: a folder from which LPX is operated on one machine.

`templates/` holds its files as they are, with `@LPX_…@` where a value goes; `folder` fills them in and puts them there.
"""

from __future__ import annotations

from lpx.init.folder import FolderError, MadeFolder, make_folder

__all__ = ["FolderError", "MadeFolder", "make_folder"]
