"""Restricts the folders to which a process may write, by means of Linux's Landlock.

Source: linux/landlock.h and landlock(7). A restricted process also cannot trace other processes or open their files and
memory below /proc.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from harness.machine.kernel import call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System call numbers, which are the same on every architecture except Alpha."""

_VERSION_FLAG = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_WRITES = 1 << 1 | 0b1_1111_1111 << 4
"""Access rights WRITE_FILE, REMOVE_DIR, REMOVE_FILE and all MAKE_ rights."""

_REFER = 1 << 13
"""Access right for links and renames between folders, since Landlock version 2; earlier versions always refuse such
links and renames.
"""

_TRUNCATE = 1 << 14
"""Access right to truncate files, since Landlock version 3."""


def write_only_in(folders: Sequence[Path]) -> str:
    """Prevents the calling thread from writing outside `folders`.

    The restriction also applies to all threads and processes that the calling thread starts afterwards. Files that are
    already open remain usable. Returns the reason if the restriction fails, otherwise "".
    """
    try:
        version = call("syscall", _CREATE_RULESET, None, 0, _VERSION_FLAG)
        writes = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
        rules = call("syscall", _CREATE_RULESET, struct.pack("=Q", writes), 8, 0)
        try:
            for folder in folders:
                beneath = os.open(folder, os.O_PATH | os.O_CLOEXEC)
                try:
                    rule = struct.pack("=Qi", writes, beneath)
                    call("syscall", _ADD_RULE, rules, _PATH_BENEATH, rule, 0)
                finally:
                    os.close(beneath)
            # landlock_restrict_self requires this call.
            call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
            call("syscall", _RESTRICT_SELF, rules, 0)
        finally:
            os.close(rules)
    except (OSError, AttributeError) as e:  # AttributeError means that the system is not Linux
        return f"Landlock: {getattr(e, 'strerror', None) or 'only Linux has it'}"
    return ""
