"""The commands. Each is a module with `add_parser(subparsers)` and `run(args) -> int`, imported when it is called.

All commands have the same exit statuses: 0 done, 1 failed while running, 2 wrong usage, 78 invalid configuration
(EX_CONFIG of sysexits.h, after which the systemd unit does not restart).
"""

from mcproxy.config.control_socket import MAIN_FILE as DEFAULT_FILE

__all__ = ["BAD_CONFIG", "DEFAULT_FILE", "FAILED", "OK", "USAGE"]

OK = 0
FAILED = 1
USAGE = 2
BAD_CONFIG = 78
