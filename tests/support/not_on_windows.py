"""Functions and constants of `os`, and modules of Python, that Linux has and Windows has not."""

OS_NAMES = (
    *("geteuid", "getuid", "fork", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "pwrite"),
    *("pread", "fchmod", "mkfifo", "O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_DIRECTORY", "sysconf"),
)
MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
