"""Eight children of a process that works, each of which works as it does."""

from work import COUNT, check, compiles, in_children, new_recurrences

check(10)
fresh = new_recurrences()
compiles(next(fresh))


def child() -> None:
    check(COUNT)
    compiles(next(fresh))
    check(10)


for _ in range(2):
    in_children(8, child)
check(10)
